"""Records of HTTP: requests, responses and errors. No behaviour, no I/O.

There is one record for each schema of the contract that Lakebed uses, under the contract's name. Records of answers
omit optional fields without a value. Records of requests are decoded strictly by type but ignore unknown fields, as the
reference server does.
"""

from .auth import *
from .collection import *
from .common import *
from .config import *
from .deleted import *
from .events import *
from .objects import *
from .operators import *
from .refs import *
from .repositories import *
from .roles import *
from .tables import *
