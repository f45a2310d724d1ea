"""What every driver of a port must do, as test classes that its author inherits. Needs pytest and pytest-asyncio in
auto mode. Each class says in its docstring what to override.
"""

import pytest

# Asserts of a module explain themselves only if pytest hears of it before it is imported.
pytest.register_assert_rewrite(
    "lakebed.testing.contracts.blocks", "lakebed.testing.contracts.durable_store", "lakebed.testing.contracts.store"
)

from .blocks import BlockStoreContract  # noqa: E402 - see above
from .durable_store import DurableStoreContract  # noqa: E402 - see above
from .store import StoreContract  # noqa: E402 - see above

__all__ = ["BlockStoreContract", "DurableStoreContract", "StoreContract"]
