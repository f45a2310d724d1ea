"""Serve collections from the live side: runs, uncommitted addresses, commits, rules, holds, restores, explanations."""

from .defer.deferring import *
from .defer.restorable import *
from .defer.restoring import *
from .deleted import *
from .errors import *
from .explain.searches import *
from .explain.tables import *
from .explain.trees import *
from .explain.trying import *
from .installation.installation import *
from .options import *
from .publish.branch_sweep import *
from .publish.hard_delete import *
from .publish.potential import *
from .reading.commits import *
from .reading.elsewhere import *
from .reading.naming import *
from .reading.reading import *
from .records.jobs import *
from .records.settings import *
from .service import *
