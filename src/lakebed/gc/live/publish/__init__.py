"""Publish the commits, addresses and files that a run will delete, so that no operation names them afterwards."""
