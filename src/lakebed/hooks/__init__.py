"""Hooks: scripts and webhooks that action files on a branch name, run before and after changes.

actions     action files, and which hooks run            options     settings and secrets
webhook     one POST of the event                        runs        records of what ran, and its output
lua         a script in a limited process of its own     service     the port of the catalog, over all these
"""

from .actions import FOLDER, InvalidAction, parse
from .options import HOOK_VARIABLES, HookFailed, HookOptions, hook_options
from .runs import ActionRunRecord, HookRunRecord, Runs
from .service import AT_ONCE_MAX, CALLER, RepositoryHooks
from .webhook import request
