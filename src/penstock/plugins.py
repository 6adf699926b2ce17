"""Models, samplers and other entries of registries that installed packages offer through entry points.

A registry asks here only for names that it does not know itself, so that packages are looked through when they are
needed and imported when they are used. docs/extending.md shows how a package offers an entry.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Entry = TypeVar("Entry")


def has_plugin(group: str, name: str) -> bool:
    """Whether an installed package offers an entry of that name. Nothing of it is imported."""
    return name in plugins(group)


@cache
def plugins(group: str) -> "dict[str, EntryPoint]":
    """The entries that installed packages offer to a registry, by name."""
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if _package(other) != _package(point):
            both = f"{_package(other)} and {_package(point)}"
            raise PenstockError(f"{both} both offer {point.name!r} in {group}: uninstall one.", code="duplicate")
    return found


def load_plugin(group: str, name: str, kind: type[Entry] | None = None) -> Any:
    """The entry that a package offers, imported; `kind` is what it must be."""
    point = plugins(group)[name]
    try:
        entry: Any = point.load()
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise PenstockError(
            f"Plug-in {name!r} of {_package(point)} ({point.value}) could not be loaded ({type(error).__name__}:"
            f" {said}): correct or uninstall it.",
            code="user-code-failed",
        ) from error
    if kind is not None and not isinstance(entry, kind):
        raise PenstockError(
            f"Plug-in {name!r} of {_package(point)} ({point.value}) is a {type(entry).__name__}, where {group} needs a"
            f" {kind.__name__}: correct or uninstall it.",
            code="user-code-failed",
        )
    return entry


def _package(point: "EntryPoint") -> str:
    return "an unnamed package" if point.dist is None else str(point.dist.name)
