"""Sorted immutable files of entries, cut by content: codecs, cuts, changes, merges. Pure: bytes in, values out."""

from .changing import *
from .codec import *
from .cutting import *
from .known import *
from .merging import *
from .metarange import *
from .schema import *
from .sealed import *
from .summary import *
from .view import *
