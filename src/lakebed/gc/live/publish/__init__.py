"""Publish what a run or a request takes, so that no one names it afterwards."""
