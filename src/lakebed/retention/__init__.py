"""The rules of forgetting in plain Python: the executable specification that the collectors must agree with."""

from .rules import DAY_MS, DAYS_MAX, InvalidRules, Rules, check_rules

__all__ = [
    "DAYS_MAX",
    "DAY_MS",
    "InvalidRules",
    "Rules",
    "check_rules",
]
