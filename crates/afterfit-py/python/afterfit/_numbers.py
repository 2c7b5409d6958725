"""Numbers as users give them."""

from __future__ import annotations

from typing import overload


@overload
def whole(name: str, value: None, least: int = 1) -> None: ...
@overload
def whole(name: str, value: float, least: int = 1) -> int: ...
def whole(name: str, value: float | None, least: int = 1) -> int | None:
    """A count, also where it is written ``1e5``; None stays None."""
    if value is None:
        return None
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        count = None
    if count is None or count != value:
        raise ValueError(f"{name} is {value!r}: it must be a whole number")
    if count < least:
        raise ValueError(f"{name} is {value}: it must be at least {least}")
    return count
