"""Engines: where the work of a collection runs, in this process or in Spark's tasks, and Lakebed's own Spark session
(session, java). Importing this package does not import Spark.
"""

from .engine import ROWS_PER_PART, Effort, Engine, LocalEngine, Task, Work

__all__ = ["ROWS_PER_PART", "Effort", "Engine", "LocalEngine", "Task", "Work"]
