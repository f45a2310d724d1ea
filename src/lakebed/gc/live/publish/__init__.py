"""Publish what a run or a request will delete, so that no operation names it afterwards."""
