"""The progress that a call from Python shows: what its argument asks for, and a line in notebooks by default."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.api.notebook_progress import shown_in_notebooks
from penstock.errors import PenstockError
from penstock.progress import SILENT, Progress
from penstock.terminal_progress import shown_progress


@contextmanager
def chosen_progress(progress: Any) -> Iterator[Progress]:
    """None: in notebooks alone. False: nowhere. True: in notebooks, and otherwise as commands show it."""
    if progress is None:
        yield shown_in_notebooks()
    elif progress is False:
        yield SILENT
    elif isinstance(progress, Progress):
        yield progress
    elif progress is not True:
        raise PenstockError(
            f"progress is True, False or an object of penstock.progress.Progress, not {type(progress).__name__}.",
            code="invalid-value",
        )
    elif (shown := shown_in_notebooks()) is not SILENT:
        yield shown
    else:
        with shown_progress(quiet=False) as shown:
            yield shown
