"""Data sets made once and kept: where `ps.load("synthetic-arxiv")` finds them."""

from pathlib import Path
from tempfile import TemporaryFile

from penstock.errors import PenstockError
from penstock.graph.cache_folder import cache_folder
from penstock.graph.generate.make import make_graph
from penstock.graph.generate.presets import recipe_named
from penstock.graph.graph import Graph
from penstock.progress import SILENT, Progress


def make_cached(name: str, progress: Progress = SILENT) -> Graph:
    """The full-scale data set of that name, from the cache or made into it."""
    recipe = recipe_named(name)
    folder = cache_folder() / name
    try:
        return Graph.open(folder)
    except PenstockError:
        # Absent, or of an older format: either way it is ours to make again.
        _check_writable(folder)
        return make_graph(recipe, folder, force=True, progress=progress)


def _check_writable(folder: Path) -> None:
    """Refuse a cache that nothing can be written to, before a data set is made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder.parent).close()
    except OSError as error:
        raise PenstockError(
            f"{folder.name} is made once and kept in {folder.parent}, which cannot be written ({error.strerror}):"
            " set PENSTOCK_CACHE to a folder that can.",
            code="write-failed",
        ) from None
