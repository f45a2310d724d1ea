"""How a bug is planted: changed methods on the real classes, over inherited ones, while a `with` lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

Patch: TypeAlias = tuple[type[Any], str, Any]
"""Class, name, method."""


@dataclass(frozen=True, slots=True)
class Surgery:
    """`guard` is what is missing. `scenes`: where in the small worlds it is hunted (none: in all that are quick)."""

    name: str
    guard: str
    patches: tuple[Patch, ...]
    scenes: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    @contextmanager
    def planted(self) -> Iterator[None]:
        before = [(owner, name, vars(owner).get(name)) for owner, name, _ in self.patches]
        try:
            for owner, name, method in self.patches:
                setattr(owner, name, method)
            yield
        finally:
            for owner, name, method in before:
                if method is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, method)


def patches(owner: type[Any], **methods: Any) -> tuple[Patch, ...]:
    return tuple((owner, name, method) for name, method in methods.items())


def mutant(name: str, guard: str, scenes: tuple[str, ...], *groups: tuple[Patch, ...]) -> Surgery:
    return Surgery(name, guard, tuple(patch for group in groups for patch in group), scenes)
