"""Check what every driver of a port must do, in test classes that its author inherits.

They need pytest and pytest-asyncio in auto mode. Each class says in its docstring what to override.
"""

import pytest

# Asserts of a module explain themselves only if pytest hears of it before it is imported.
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
