"""Which objects go. Nothing here deletes."""

from .committed import mark_expired
from .subtract import subtract
from .uncommitted import Live, Marked, Places, mark_unreferenced

__all__ = ["Live", "Marked", "Places", "mark_expired", "mark_unreferenced", "subtract"]
