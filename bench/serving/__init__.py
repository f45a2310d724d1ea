"""Requests over HTTP: API, S3 and pages, beside bare routes that give the same answers."""
