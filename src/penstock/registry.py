"""One registry for every kind of extension: entries by name, imported at first use, and those of installed packages.

A registry's table maps names to entries, or to "module:NAME" where an entry is imported when it is first used, so that
help, job files and completion load no kernels. Every registry has a group of entry points by which installed packages
offer further entries (docs/extending.md). These are searched for names that are not in the table.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from penstock.errors import PenstockError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Entries of one kind by name. Iterating gives Penstock's own; `in` and `[]` also find those of
    installed packages.
    """

    def __init__(
        self,
        what: str,
        group: str,
        table: Mapping[str, Entry | str],
        kind: Any = object,
        part: str = "",
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """`what` names an entry in sentences; `kind` is the class of all entries, or its location ("module:NAME").

        `part` is the attribute of a package's entry that belongs here, where two registries have one group. `renamed`
        maps names of earlier releases to the current ones; an old name is refused with the current one.
        """
        self.what, self.group = what, group
        self._table, self._kind, self._part, self._renamed = dict(table), kind, part, dict(renamed or {})

    def __getitem__(self, name: str) -> Entry:
        """The entry of that name, imported if necessary; an error where there is none."""
        if name in self._table:
            entry = self._table[name]
            return cast(Entry, _imported(entry)) if isinstance(entry, str) else entry
        if name in plugins(self.group):
            return cast(Entry, self._plugin(name))
        raise self.unknown(name)

    def __contains__(self, name: object) -> bool:
        """Whether there is an entry of that name. Nothing of it is imported."""
        return name in self._table or name in plugins(self.group)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def values(self) -> list[Entry]:
        """Penstock's own entries, all of them imported."""
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, Entry]]:
        """Penstock's own entries by name, all of them imported."""
        return [(name, self[name]) for name in self]

    def names(self) -> list[str]:
        """All names: Penstock's own and those of installed packages. Nothing is imported."""
        return [*self._table, *(name for name in plugins(self.group) if name not in self._table)]

    def words(self, *others: str) -> str:
        """Penstock's own names as help texts list them: `a, b or c`."""
        *names, last = [*others, *self._table]
        return f"{', '.join(names)} or {last}" if names else last

    def location(self, name: str) -> str:
        """Where the entry of that name is, as MODULE:NAME. Nothing is imported."""
        if name not in self:
            raise self.unknown(name)
        return str(self._table[name] if name in self._table else plugins(self.group)[name].value)

    def unknown(self, name: str, *others: str) -> PenstockError:
        """The error for a name without an entry, with the nearest known name; `others` are words
        that are also allowed.
        """
        if name in self._renamed:
            sentence = f"The {self.what} {name!r} is called {self._renamed[name]!r} now: use that name."
        else:
            sentence = f"No {self.what} is called {name!r}{nearest(name, [*others, *self.names()])}"
        return PenstockError(sentence, code="unknown-name")

    @contextmanager
    def added(self, name: str, entry: Entry | str) -> Iterator[None]:
        """Within it there is an entry of that name, in place of any other; for tests of an entry."""
        before = dict(self._table)
        self._table[name] = entry
        try:
            yield
        finally:
            self._table = before

    def _plugin(self, name: str) -> Any:
        """The entry that a package offers, imported and checked to be of this registry's kind."""
        point = plugins(self.group)[name]
        try:
            entry: Any = point.load()
            entry = getattr(entry, self._part) if self._part else entry
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            raise PenstockError(
                f"Plug-in {name!r} of {_package(point)} ({point.value}) could not be loaded ({type(error).__name__}:"
                f" {said}): correct or uninstall it.",
                code="user-code-failed",
            ) from error
        kind = _imported(self._kind) if isinstance(self._kind, str) else self._kind
        if not isinstance(entry, kind):
            raise PenstockError(
                f"Plug-in {name!r} of {_package(point)} ({point.value}) is a {type(entry).__name__}, where"
                f" {self.group} needs a {kind.__name__}: correct or uninstall it.",
                code="user-code-failed",
            )
        return entry


@cache
def plugins(group: str) -> "dict[str, EntryPoint]":
    """The entries that installed packages offer to a registry, by name."""
    found: dict[str, EntryPoint] = {}
    for point in _installed().select(group=group):
        other = found.setdefault(point.name, point)
        if _package(other) != _package(point):
            both = f"{_package(other)} and {_package(point)}"
            raise PenstockError(f"{both} both offer {point.name!r} in {group}: uninstall one.", code="duplicate")
    return found


@cache
def _installed() -> Any:
    """All entry points of installed packages, searched once, which takes some 30 ms."""
    from importlib.metadata import entry_points

    return entry_points()


def look_again() -> None:
    """Forget the installed packages, after some were installed or removed."""
    plugins.cache_clear()
    _installed.cache_clear()


def _package(point: "EntryPoint") -> str:
    return "an unnamed package" if point.dist is None else str(point.dist.name)


def _imported(location: str) -> Any:
    module, _, attribute = location.partition(":")
    return getattr(import_module(module), attribute)


# Names of a package that are imported when they are first used.
#
# A command's help, or a module that needs only a package's options, does not wait for Numba and torch.


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`, for the names of its `__all__`.

    Where each name is defined is said once, by the imports that the package has for type checkers
    (`if TYPE_CHECKING:`); they are read from its source when a name is first asked for.
    """

    @cache
    def homes() -> dict[str, str]:
        tree = ast.parse(inspect.getsource(sys.modules[package]))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        return {name.name: str(node.module) for node in imports for name in node.names}

    def names() -> list[str]:
        listed: list[str] = sys.modules[package].__all__
        return listed

    def lookup(name: str) -> Any:
        if name not in names() or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes()[name]), name)

    return lookup, names


# Modules that can be called, so that users can write `ps.train(...)` although `train` is a package.


_CALLED: dict[str, Callable[[], Any]] = {}


class CallableModule(ModuleType):
    """Calls the function that `on_call` names for it, and shows that function's signature and docstring."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return _CALLED[self.__name__]()(*given, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a module by its name: functions that call it are sent to other processes, by Ray
        and Dask for example.
        """
        return import_module, (self.__name__,)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function, for `inspect` and notebooks."""
        return inspect.signature(_CALLED[self.__name__]())

    def __getattribute__(self, name: str) -> Any:
        # `help` and notebooks read it; a module's own docstring is for those who read its source.
        return _CALLED[self.__name__]().__doc__ if name == "__doc__" else super().__getattribute__(name)


def make_callable(name: str) -> None:
    """Make the module of that name callable."""
    sys.modules[name].__class__ = CallableModule


def on_call(name: str, function: Callable[[], Any]) -> None:
    """Say what the module of that name calls: `function` looks it up, as what is called lies above the module."""
    _CALLED[name] = function
