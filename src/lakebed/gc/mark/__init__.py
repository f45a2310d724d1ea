"""Which objects go. Nothing here deletes."""

from .committed import mark_expired
from .subtract import subtract
from .uncommitted import mark_unreferenced

__all__ = ["mark_expired", "mark_unreferenced", "subtract"]
