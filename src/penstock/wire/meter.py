"""Bytes that a thread's own calls received, by peer and flow."""

import threading

_THREAD = threading.local()


class Meter:
    """Bytes received in answers to the calls of one thread."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, str], int] = {}

    def count(self, peer: str, flow: str, size: int) -> None:
        """More has arrived from a peer, over a flow of that name."""
        self._bytes[peer, flow] = self._bytes.get((peer, flow), 0) + size

    def take(self) -> dict[tuple[str, str], int]:
        """What arrived since the last time, by (peer, flow)."""
        found, self._bytes = self._bytes, {}
        return found


def own_meter() -> Meter:
    """The meter of the calling thread."""
    meter: Meter | None = getattr(_THREAD, "meter", None)
    if meter is None:
        meter = _THREAD.meter = Meter()
    return meter
