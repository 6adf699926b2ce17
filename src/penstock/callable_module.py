"""Modules that can be called: `ps.train(...)` is the sentence users want to write, and a package has that name."""

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """Calls the function of `penstock.api` that has its name, and shows that function's signature and docstring."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return _function(self)(*given, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        """A module is sent by its name: functions that call it travel to other processes, as Ray's and Dask's do."""
        return import_module, (self.__name__,)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function, for `inspect` and notebooks."""
        return inspect.signature(_function(self))

    def __getattribute__(self, name: str) -> Any:
        # `help` and notebooks ask for it; a module's own docstring is for those who read its source.
        return _function(self).__doc__ if name == "__doc__" else super().__getattribute__(name)


def make_callable(name: str) -> None:
    """Let the module of that name be called."""
    sys.modules[name].__class__ = CallableModule


def _function(module: ModuleType) -> Any:
    """The function of that name; `penstock.api` is imported at the call, because it lies above these modules."""
    return getattr(import_module("penstock.api"), module.__name__.rpartition(".")[2])
