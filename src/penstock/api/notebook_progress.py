"""Progress in a notebook: one line for the work under way, which is replaced as it goes on."""

import sys
import time
from html import escape
from typing import Any

from penstock.progress import SILENT, Progress

_SECONDS = 0.25
"""Between two changes of a line."""


def shown_in_notebooks() -> Progress:
    """Progress that a notebook shows; silent everywhere else."""
    shell = sys.modules.get("IPython")
    kernel = None if shell is None else shell.get_ipython()
    return NotebookProgress() if type(kernel).__name__ == "ZMQInteractiveShell" else SILENT


class NotebookProgress(Progress):
    """Shows each piece of work as a line with a bar."""

    def __init__(self) -> None:
        super().__init__()
        from IPython.display import HTML, display

        self._html: Any = HTML
        self._display: Any = display
        self._handle: Any = None
        self.start("", 0, "")

    def start(self, what: str, total: int, unit: str) -> None:
        """See `Progress.start`."""
        self._what, self._total, self._unit, self._done, self._shown = what, total, unit, 0, 0.0

    def advance(self, amount: int) -> None:
        """See `Progress.advance`."""
        self._done += amount
        self._show()

    def status(self, line: str) -> None:
        """See `Progress.status`."""
        self._what = line
        self._show()

    def finish(self) -> None:
        """See `Progress.finish`."""
        self._show(now=True)

    def note(self, sentence: str) -> None:
        """See `Progress.note`."""
        self._display(self._html(f"<div>{escape(sentence)}</div>"))
        # Later lines stand below the note.
        self._handle = None

    def _show(self, now: bool = False) -> None:
        moment = time.monotonic()
        if not now and moment - self._shown < _SECONDS:
            return
        self._shown = moment
        bar = f"<progress value='{self._done}' max='{self._total}'></progress> " if self._total else ""
        page = self._html(f"<div>{bar}{escape(self._what)} ({self._done:,} {escape(self._unit)})</div>")
        if self._handle is None:
            self._handle = self._display(page, display_id=True)
        else:
            self._handle.update(page)
