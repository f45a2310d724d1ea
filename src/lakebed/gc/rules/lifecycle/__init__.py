"""Lifecycle: objects are deleted by path, branch and age although commits, even heads, still name them. Pure."""

from .branches import *
from .document import *
from .due import *
from .paths import *
from .periods import *
from .policy import *
from .reach import *
