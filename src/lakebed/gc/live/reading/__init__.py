"""Read all live addresses, page by page: uncommitted addresses, commits, and all other names of objects."""
