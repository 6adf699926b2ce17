"""Imports at first use: names of packages, and modules that can be called."""

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

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
