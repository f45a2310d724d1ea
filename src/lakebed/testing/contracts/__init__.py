"""Test classes for drivers: each checks the promises of a port. The author of a driver inherits them.

They need pytest, and pytest-asyncio in auto mode. Each class names in its docstring the fixtures to override.
"""

import pytest

# pytest rewrites the asserts of a module only if it is registered before its import.
pytest.register_assert_rewrite(
    "lakebed.testing.contracts.objectstore",
    "lakebed.testing.contracts.durable_store",
    "lakebed.testing.contracts.remote_store",
    "lakebed.testing.contracts.store",
)

from .durable_store import DurableStoreContract  # noqa: E402 - see above
from .objectstore import ObjectStoreContract  # noqa: E402 - see above
from .remote_store import RemoteStoreContract  # noqa: E402 - see above
from .store import StoreContract  # noqa: E402 - see above

__all__ = ["DurableStoreContract", "ObjectStoreContract", "RemoteStoreContract", "StoreContract"]
