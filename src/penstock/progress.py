"""The interface through which long work reports its progress."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Progress:
    """Receives reports of progress and ignores them; subclasses show them as bars or lines."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, what: str, total: int, unit: str) -> None:
        """A piece of work named `what` begins; it will advance `total` `unit`s (0: unknown)."""

    def advance(self, amount: int) -> None:
        """`amount` more units are done. May be called from several threads."""

    def finish(self) -> None:
        """The current piece of work is over; where it advanced less than its total, it was stopped before its end."""

    def status(self, line: str) -> None:
        """Report the state of the current piece of work in a line that replaces the previous one."""

    def validated(self, metric: str, better: str, best: float, epoch: int) -> None:
        """A model was validated: the best value of the metric so far, and after which epoch it was reached."""

    def note(self, sentence: str) -> None:
        """Report something that the user should know and that is not an error."""

    @contextmanager
    def step(self, what: str, total: int = 0, unit: str = "") -> Iterator[None]:
        """One piece of work, from start to finish; one that raises is never reported as finished."""
        self.start(what, total, unit)
        yield
        self.finish()


SILENT = Progress()
_shown: ContextVar[Progress] = ContextVar("shown", default=SILENT)


@contextmanager
def shown_by(progress: Progress) -> Iterator[None]:
    """Meanwhile work of this thread that is given no progress, as fetching a file is, reports to this one."""
    token = _shown.set(progress)
    try:
        yield
    finally:
        _shown.reset(token)


def current_progress() -> Progress:
    """What work reports to that is given no progress."""
    return _shown.get()
