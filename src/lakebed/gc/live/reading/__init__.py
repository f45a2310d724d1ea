"""Read what is alive, page by page: uncommitted addresses, commits, and everything else that names an object."""
