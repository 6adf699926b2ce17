"""Reading values that someone else wrote: what is not of the expected kind counts as absent."""

import math
from typing import Any

_LARGEST = 1e100


def number(value: Any) -> float | None:
    """A number that can be drawn, or None: what is beyond a googol either way is no measurement."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    if not math.isfinite(found) or abs(found) > _LARGEST:
        return None
    return found if abs(found) > 1 / _LARGEST else 0.0


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    found = number(value)
    return None if found is None else int(found)


def mapping(value: Any) -> dict[str, Any]:
    """A mapping with text for keys; empty when the value is none."""
    return {str(key): each for key, each in value.items()} if isinstance(value, dict) else {}


_LARGEST = 1e100


def numbers(value: Any) -> dict[str, float]:
    """The finite numbers of a mapping."""
    found = {key: number(each) for key, each in mapping(value).items()}
    return {key: each for key, each in found.items() if each is not None}
