"""The rules of retention and collection in plain Python: the specification that all collectors must match. Pure."""

from .active import *
from .committed import *
from .explaining import *
from .history import *
from .holds import *
from .lasting import *
from .metadata import *
from .rules import *
from .selection import *
from .uncommitted import *
