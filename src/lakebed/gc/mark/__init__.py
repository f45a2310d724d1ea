"""Which objects go. Nothing here deletes."""

from .committed import mark_expired
from .foreign import mark_foreign
from .subtract import subtract
from .uncommitted import Live, Marked, Places, mark_unreferenced

__all__ = ["Live", "Marked", "Places", "mark_expired", "mark_foreign", "mark_unreferenced", "subtract"]
