"""Types that every part uses: ids, addresses, entries, names, amounts, errors, run states, ports."""

from .addresses import *
from .amounts import *
from .drawing import *
from .entries import *
from .errors import *
from .etags import *
from .events import *
from .later import *
from .names import *
from .ports import *
from .runs import *
from .signing import *
