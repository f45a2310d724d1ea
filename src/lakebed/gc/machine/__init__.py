"""Run the steps of every run, in order: checks (preflight), plan and apply (flow), the recheck (looking), sweep."""
