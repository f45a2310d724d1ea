"""Identify callers: browser logins, identity providers, and the first administrator."""
