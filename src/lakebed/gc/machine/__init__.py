"""What every run does, in order: checks (preflight), plan and apply (flow), a second look (looking), sweep."""
