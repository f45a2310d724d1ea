"""The last line of each command: what it counted, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def sum_up(
    name: str, figures: Mapping[str, Any], *, is_json: bool, beside: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Print the figures, a collection by its size. As JSON they are one object, with what stands `beside` them."""
    if is_json:
        print(json.dumps({"name": name, **figures, **beside}))
        return
    amounts = {key: len(value) if isinstance(value, list | dict) else value for key, value in figures.items()}
    print("in all: " + ", ".join(f"{amount:,} {key.replace('_', ' ')}" for key, amount in amounts.items()))
