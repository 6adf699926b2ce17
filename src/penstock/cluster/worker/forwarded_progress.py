"""Progress of a worker, shown by the controller."""

import threading
import time
from contextlib import suppress

from penstock.cluster.member import Member
from penstock.errors import PenstockError
from penstock.progress import Progress

_OFTEN = 0.2
"""Seconds between two messages about how far a piece of work is."""


class ForwardedProgress(Progress):
    """Sends everything on; many small advances as one."""

    def __init__(self, member: Member) -> None:
        super().__init__()
        self._member, self._lock = member, threading.Lock()
        self._advanced, self._told = 0, 0.0

    def start(self, what: str, total: int, unit: str) -> None:
        """A piece of work begins."""
        self._tell(what="start", text=what, amount=total, unit=unit)

    def advance(self, amount: int) -> None:
        """Forward that some of the work is done."""
        with self._lock:
            self._advanced += amount
            if time.monotonic() - self._told < _OFTEN:
                return
            amount, self._advanced, self._told = self._advanced, 0, time.monotonic()
        self._tell(what="advance", amount=amount)

    def finish(self) -> None:
        """Forward that the work is done."""
        with self._lock:
            amount, self._advanced = self._advanced, 0
        if amount:
            self._tell(what="advance", amount=amount)
        self._tell(what="finish")

    def status(self, line: str) -> None:
        """Forward a line of text about the current state."""
        self._tell(what="status", text=line)

    def note(self, sentence: str) -> None:
        """Something the user should know."""
        self.notes.append(sentence)
        self._tell(what="note", text=sentence)

    def _tell(self, **body: object) -> None:
        # What is shown is not worth a failure.
        with suppress(PenstockError):
            self._member.ask("progress", **body)
