"""Branches and tags: their records (refs), the log of their moves (reflog), and the expressions that name a commit."""
