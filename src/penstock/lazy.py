"""Names of a package that are imported when they are first asked for.

A command's help, or a module that needs only a package's options, does not wait for Numba and torch.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """A package's `__getattr__`: `homes` says which of its modules has which names."""
    modules = {name: home for home, names in homes.items() for name in names}

    def lookup(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return lookup
