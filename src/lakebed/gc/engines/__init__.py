"""Engines: where the work of a collection runs, in this process or in Spark's tasks. Importing this loads no Spark."""

from .engine import Effort, Engine, LocalEngine, Task, Work

__all__ = ["Effort", "Engine", "LocalEngine", "Task", "Work"]
