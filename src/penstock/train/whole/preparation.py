"""What a step on the whole graph does before it is computed for the first time: told while it is done, and timed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.train.session import Session


class Preparation:
    """Seconds of everything that is done once, by name."""

    def __init__(self, session: Session) -> None:
        self._session, self._seconds = session, dict[str, float]()

    @contextmanager
    def phase(self, name: str, doing: str) -> Iterator[None]:
        """One piece of the preparation; several of one name are counted together. `doing` is told."""
        began = time.perf_counter()
        self._session.progress.status(f"whole graph: {doing}")
        yield
        took = time.perf_counter() - began
        self._seconds[name] = self._seconds.get(name, 0.0) + took
        self._session.progress.status(f"whole graph: {doing}: {took:.1f} s")

    def facts(self) -> dict[str, float]:
        """Seconds as they are shown."""
        return {name: round(each, 3) for name, each in self._seconds.items()}
