"""The contract between server and collectors: run folders, tables, manifests, messages, reports. Pure."""

from lakebed.base import RunKind as RunKind
from lakebed.base import RunState as RunState

from .branches import *
from .calls import *
from .erasures import *
from .jobs import *
from .requests import *
from .restoring import *
from .run.certificates import *
from .run.ledger import *
from .run.paths import *
from .run.planned import *
from .run.plans import *
from .run.tables import *
from .service import *
from .settings import *
from .simulation import *
from .storage import *
from .why import *
