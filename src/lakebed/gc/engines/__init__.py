"""Engines: where the work of a collection runs, in this process or in Spark's tasks. Importing this loads no Spark."""

from .engine import DeletingWork, Effort, Engine, Task, Work
from .local import LocalEngine

__all__ = ["DeletingWork", "Effort", "Engine", "LocalEngine", "Task", "Work"]
