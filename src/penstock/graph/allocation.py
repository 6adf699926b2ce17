"""Refuses an allocation whose size comes from a file where there is not enough memory."""

from penstock.errors import PenstockError
from penstock.memory import available_mb


def require_memory(size: int, what: str, mend: str) -> None:
    """Refuse to allocate more than there is: a wrong count would have the process killed.

    `what` needs `size` bytes; `mend` says what to do about it.
    """
    free = available_mb() << 20
    if size > free:
        raise PenstockError(
            f"{what} need {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free: {mend}.", code="out-of-memory"
        )
