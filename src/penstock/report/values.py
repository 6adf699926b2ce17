"""Reading values that someone else wrote: what is not of the expected kind counts as absent."""

import math
from typing import Any


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    found = number(value)
    return None if found is None else int(found)


def mapping(value: Any) -> dict[str, Any]:
    """A mapping with text for keys; empty when the value is none."""
    return {str(key): each for key, each in value.items()} if isinstance(value, dict) else {}


def numbers(value: Any) -> dict[str, float]:
    """The finite numbers of a mapping."""
    found = {key: number(each) for key, each in mapping(value).items()}
    return {key: each for key, each in found.items() if each is not None}
