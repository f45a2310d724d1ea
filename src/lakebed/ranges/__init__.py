"""Sorted immutable files of entries, cut by content: codecs, cuts, changes, merges. Pure: bytes in, values out."""

from .changing import *
from .codec import *
from .cutting import *
from .merging import *
from .metarange import *
from .sealed import *
from .view import *
