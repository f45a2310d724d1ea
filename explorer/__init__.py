"""Walk schedules: live, by a seed, or every one at the cost of its distinct states."""
