"""A catalog over memory, as the tests of the catalog have it."""

from tests.catalog.conftest import catalog, clock, make_catalog, open_namespace, ports, store

__all__ = ["catalog", "clock", "make_catalog", "open_namespace", "ports", "store"]
