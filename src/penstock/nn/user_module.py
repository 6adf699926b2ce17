"""Code of the user's own, named by its location so that every process of a run can import it."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch

from penstock.errors import PenstockError, nearest

Widths = int | Mapping[str, int]


@contextmanager
def code_at_fault(what: str) -> Iterator[None]:
    """What fails in it is a function of the user's: the sentence says which."""
    try:
        yield
    except (PenstockError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise PenstockError(
            f"{what} failed ({type(error).__name__}: {said}): correct it.", code="user-code-failed"
        ) from error


def build_user_module(name: str, inputs: Widths, outputs: int) -> torch.nn.Module:
    """The module that the function or class at FILE.py:NAME or PACKAGE.MODULE:NAME makes for the widths in and out.

    `inputs` are widths by type where there are several.
    """
    make = imported_callable(name)
    try:
        made: Any = make(inputs=inputs, outputs=outputs)
    except Exception as error:
        what = " ".join(str(error).split())[:200]
        raise PenstockError(
            f"{name} could not be called with inputs={inputs!r} and outputs={outputs} ({type(error).__name__}:"
            f" {what}): make it accept these two arguments.",
            code="user-code-failed",
        ) from error
    if not isinstance(made, torch.nn.Module):
        raise PenstockError(
            f"{name} returned a {type(made).__name__}: it must return a torch.nn.Module.", code="user-code-failed"
        )
    return made


def imported_callable(name: str, what: str = "Module") -> Callable[..., Any]:
    """The function or class at FILE.py:NAME or PACKAGE.MODULE:NAME; `what` is the first word of errors."""
    place, _, attribute = name.rpartition(":")
    found = _imported(place, name, what)
    target = getattr(found, attribute, None)
    if not callable(target):
        known = [each for each in vars(found) if not each.startswith("_")]
        raise PenstockError(
            f"{place} has nothing callable named {attribute!r}{nearest(attribute, known)}", code="unknown-name"
        )
    return cast(Callable[..., Any], target)


def user_module_location(name: str) -> str:
    """The same name, with an absolute path of the file."""
    place, colon, attribute = name.rpartition(":")
    return f"{Path(place).resolve()}{colon}{attribute}" if place.endswith(".py") else name


def _imported(place: str, name: str, what: str) -> ModuleType:
    if not place:
        raise PenstockError(
            f"{what} {name!r} does not say where it is: write FILE.py:NAME or PACKAGE.MODULE:NAME.",
            code="invalid-value",
        )
    try:
        return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except FileNotFoundError:
        raise PenstockError(
            f"{place} does not exist: give the module's file the same path on every machine.", code="file-not-found"
        ) from None
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise PenstockError(
            f"{place} could not be imported ({type(error).__name__}: {said}): correct it.", code="user-code-failed"
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(path)
    # Two files may have the same name.
    mark = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"penstock_own_{path.stem}_{mark}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # The file may import what is beside it, but that must not shadow anything installed.
    beside = str(path.resolve().parent)
    if beside not in sys.path:
        sys.path.append(beside)
    spec.loader.exec_module(module)
    return module
