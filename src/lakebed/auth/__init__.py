"""Identity and permissions of callers: users, credentials, external identities, groups, policies, permissions.

Stored records: docs/formats/auth.md. Built-in groups and policies: built_in.py.
"""

from .accounts import *
from .authenticator import *
from .lent import *
from .permissions.actions import *
from .permissions.built_in import *
from .permissions.conditions import *
from .permissions.grants import *
from .permissions.groups import *
from .permissions.policies import *
from .permissions.register import *
from .permissions.statements import *
from .principals import *
from .records import *
from .tickets import *
