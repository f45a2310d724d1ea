"""Engines: where the work of a collection runs, in this process or in Spark's tasks; a Spark session of our own
(session, java). Importing this loads no Spark.
"""

from .engine import ROWS_PER_PART, Effort, Engine, LocalEngine, Task, Work

__all__ = ["ROWS_PER_PART", "Effort", "Engine", "LocalEngine", "Task", "Work"]
