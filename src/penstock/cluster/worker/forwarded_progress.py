"""Progress of a worker, shown by the controller."""

import threading
import time
from collections import deque
from contextlib import suppress

from penstock.cluster.member import Member
from penstock.errors import PenstockError
from penstock.progress import Progress

_OFTEN = 0.2
"""Seconds between two messages about how far a piece of work is."""


class ForwardedProgress(Progress):
    """Sends everything on in order, many small advances as one.

    Training does not wait for the controller, which may be behind a slow link; only the end of a piece of work and
    notes return when all that was said has been heard.
    """

    def __init__(self, member: Member) -> None:
        super().__init__()
        self._member, self._changed = member, threading.Condition()
        self._untold: deque[dict[str, object]] = deque()
        self._telling = False
        self._advanced, self._told = 0, 0.0

    def start(self, what: str, total: int, unit: str) -> None:
        """A piece of work begins."""
        self._tell(what="start", text=what, amount=total, unit=unit)

    def advance(self, amount: int) -> None:
        """Forward that some of the work is done."""
        with self._changed:
            self._advanced += amount
            if self._untold or time.monotonic() - self._told < _OFTEN:
                return
            amount, self._advanced, self._told = self._advanced, 0, time.monotonic()
        self._tell(what="advance", amount=amount)

    def finish(self) -> None:
        """Forward that the work is done."""
        with self._changed:
            amount, self._advanced = self._advanced, 0
        if amount:
            self._tell(what="advance", amount=amount)
        self._tell(what="finish")
        self._wait()

    def status(self, line: str) -> None:
        """Forward a line of text about the current state."""
        self._tell(what="status", text=line)

    def note(self, sentence: str) -> None:
        """Something the user should know."""
        self.notes.append(sentence)
        self._tell(what="note", text=sentence)
        self._wait()

    def _tell(self, **body: object) -> None:
        with self._changed:
            self._untold.append(body)
            if not self._telling:
                self._telling = True
                threading.Thread(target=self._tell_all, name="progress", daemon=True).start()

    def _tell_all(self) -> None:
        """One message after the other: the controller's threads would change the order of several."""
        while True:
            with self._changed:
                if not self._untold:
                    self._telling = False
                    self._changed.notify_all()
                    return
                body = self._untold.popleft()
            # What is shown is not worth a failure.
            with suppress(PenstockError):
                self._member.ask("progress", **body)

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._telling)
