"""Objects that no commit ever named: the plan, what one run leaves for the next (saved), and keys of an old layout."""
