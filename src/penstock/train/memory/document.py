"""A forecast as one JSON object and as lines of text."""

from typing import Any

from penstock.train.memory.forecast import MemoryForecast
from penstock.train.trace.categories import CATEGORIES, CONTEXT

_BAR = 40
"""Characters of a bar."""


def forecast_fields(found: MemoryForecast, device_memory: int | None = None) -> dict[str, Any]:
    """What `penstock memory --json` prints; sizes are bytes."""
    device = None
    if found.device == "cuda":
        parts = listed(found.categories) | {CONTEXT: found.context}
        device = {
            "allocated": found.device_allocated,
            "reserved": found.device_reserved,
            "context": found.context,
            "total": found.device_bytes,
            "memory": device_memory,
            "categories": parts,
            "throughput_share": found.share,
        }
    return {
        "device": found.device,
        "device_memory": device,
        "host_memory": {"resident": found.host, "categories": listed(found.host_categories)},
        "moment": found.moment,
        "method": found.method,
        "reason": found.reason,
        "seconds": found.seconds,
        "why": found.why,
    }


def listed(categories: dict[str, int]) -> dict[str, int]:
    """Categories in the order in which they are listed; those that take nothing are left out."""
    known = [name for name in CATEGORIES if categories.get(name)]
    return {name: categories[name] for name in [*known, *(each for each in categories if each not in CATEGORIES)]}


def bar_of(size: int, largest: int) -> str:
    """A bar whose length shows a size; the largest one's is full."""
    full, rest = divmod(8 * _BAR * size // max(1, largest), 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest].strip() if rest else "")


def size_text(size: int) -> str:
    """A size with three digits or so: `1.23 GB`."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.2f} {name}"
    return f"{size} bytes"
