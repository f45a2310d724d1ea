"""Which objects go: pure functions from DataFrames to DataFrames. They read nothing and delete nothing."""

from .committed import mark_expired
from .subtract import subtract
from .uncommitted import mark_unreferenced, without_young

__all__ = ["mark_expired", "mark_unreferenced", "subtract", "without_young"]
