"""Write a timeline in the form that its file's name asks for."""

from pathlib import Path

from penstock.errors import PenstockError
from penstock.graph.atomic import write_whole
from penstock.report.gantt.page import Shown, render_page
from penstock.report.gantt.trace_file import trace_text

_FORMS = (".html", ".json")


def write_timeline(shown: Shown, path: Path) -> None:
    """Write a page (.html) or a Perfetto trace (.json); the timeline must have been made with `segments`."""
    check_form(path)
    write_whole(path, render_page(shown) if path.suffix == ".html" else trace_text(shown.timeline, shown.placement))


def check_form(path: Path) -> None:
    """Refuse a name that says neither page nor trace, or a folder that is not there, before anything is simulated."""
    if path.suffix not in _FORMS:
        raise PenstockError(
            f"{path} is neither a page nor a trace: end its name in .html or .json.", code="invalid-value"
        )
    if not path.parent.is_dir():
        raise PenstockError(
            f"The folder {path.parent} does not exist: make it, or write {path.name} elsewhere.", code="file-not-found"
        )
