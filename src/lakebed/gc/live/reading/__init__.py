"""Read all live addresses, page by page: uncommitted ones, commits, and everything else that names an object."""
