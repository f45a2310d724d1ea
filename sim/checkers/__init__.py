"""Check invariants: at each step, at every ending, and of each branch record's moves."""
