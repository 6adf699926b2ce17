"""Memory that messages are received into, kept for the next ones."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names for its settings, in malloc.h."""
_KEPT_BYTES, _MAPPED_BYTES = 64 << 20, 8 << 20


def keep_freed_memory() -> bool:
    """Have this process keep up to 64 MiB that it freed, instead of giving them back to the system at once.

    Every large message is received into new memory. With glibc's own settings a part of 1 MiB is new pages each time,
    and making those takes longer than receiving it: a third of the throughput in the clear. For processes that are
    tasks of a run; it changes the allocator of the whole process, so a post does not do it by itself. Whether it could
    be done: only glibc has these settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
