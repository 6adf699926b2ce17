"""Imports at first use: names of packages, modules that can be called, and entries of installed plug-ins."""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


# Names of a package that are imported when they are first used.  A command's help, or a module that needs only a
# package's options, does not wait for Numba and torch.


def lazy_names(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """A package's `__getattr__`; `homes` maps each of its modules to the names that it defines."""
    modules = {name: home for home, names in homes.items() for name in names}

    def lookup(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return lookup


# Modules that can be called, so that users can write `ps.train(...)` although `train` is a package.


class CallableModule(ModuleType):
    """Calls the function of `penstock.api` that has its name, and shows that function's signature and docstring."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return _function(self)(*given, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a module by its name: functions that call it are sent to other processes, by Ray
        and Dask for example.
        """
        return import_module, (self.__name__,)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function, for `inspect` and notebooks."""
        return inspect.signature(_function(self))

    def __getattribute__(self, name: str) -> Any:
        # `help` and notebooks read it; a module's own docstring is for those who read its source.
        return _function(self).__doc__ if name == "__doc__" else super().__getattribute__(name)


def make_callable(name: str) -> None:
    """Make the module of that name callable."""
    sys.modules[name].__class__ = CallableModule


def _function(module: ModuleType) -> Any:
    """The function with the module's name; imported at the call, because `penstock.api` imports these modules."""
    return getattr(import_module("penstock.api"), module.__name__.rpartition(".")[2])


# Models, samplers and other entries of registries that installed packages offer through entry points.  A registry calls
# these functions only for names that it does not define, so that packages are searched when they are needed and
# imported when they are used. docs/extending.md shows how a package offers an entry.

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
    """The entry that a package offers, imported; an error where it is no `kind`."""
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
