"""Triton's `jit` for Penstock's kernels, which can be compiled ahead of their first launch, several at a time.

A first run on a machine has some forty kernels to compile. Launched one after the other, each waits for its compiler,
for the C compiler that makes its launcher, and for the driver that loads it. Where the run's steps are traced within
`compiled_ahead`, their launches run nothing and hand the kernels to threads.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import triton
from triton.runtime import build
from triton.runtime.jit import JITFunction

from penstock.traced import compiles_kernels

_Function = Callable[..., Any]


def jit(function: _Function | None = None, *, do_not_specialize: list[str] | None = None) -> Any:
    """`triton.jit`, with launches that only compile where a trace compiles kernels."""
    if function is None:
        return lambda named: jit(named, do_not_specialize=do_not_specialize)
    made = triton.jit(function, do_not_specialize=do_not_specialize)
    # Triton's interpreter has nothing to compile.
    return _Kernel(function, do_not_specialize=do_not_specialize) if isinstance(made, JITFunction) else made


class _Kernel(JITFunction):  # type: ignore[misc]
    """A kernel that is not launched while a trace compiles kernels."""

    def run(self, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return super().run(*args, grid=grid, warmup=warmup or compiles_kernels(), **options)


class Loading(Executor):
    """Threads that compile kernels and load them. A failure shows at the first launch.

    A kernel is given to whoever waits for it when it is loaded, not before: Triton sets a kernel's launcher first and
    its function when the driver has loaded it, and a launch meanwhile would find the one without the other.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def submit(self, compiled: _Function, /, *given: Any, **named: Any) -> "Future[Any]":
        def load() -> Any:
            kernel = compiled(*given, **named)
            _ = kernel.run
            return kernel

        return self._pool.submit(load)


_load_from_path: Callable[[str, str], ModuleType] | None = getattr(build, "_load_module_from_path", None)
_LOADING = threading.Lock()


def _loaded_apart(name: str, path: str) -> ModuleType:
    """A launcher, with functions that stay its own.

    All launchers are C modules of one name. Where one is loaded that was loaded before, Python writes its functions
    into whichever launcher the process loaded last, so that another thread, which was about to take the functions of
    that one, would launch its kernel with another kernel's arguments.
    """
    assert _load_from_path is not None
    found = ModuleType(name)
    with _LOADING:
        vars(found).update(vars(_load_from_path(name, path)))
    return found


if _load_from_path is not None:
    build._load_module_from_path = _loaded_apart


def can_compile_ahead() -> bool:
    """Whether Triton is of a version that compiles in threads and loads what was compiled as we know it, and compiles
    at all.
    """
    return hasattr(triton, "AsyncCompileMode") and _load_from_path is not None and not triton.knobs.runtime.interpret


@contextmanager
def compiled_ahead(device: torch.device, threads: int) -> Iterator[None]:
    """Within it, threads compile the kernels of what is traced under `penstock.traced.compiling`.

    A launch waits for its own kernel, and the end of the context for all of them.
    """
    # Threads begin with the first GPU.
    number = torch.cuda.current_device() if device.index is None else device.index
    with ThreadPoolExecutor(threads, "compile", torch.cuda.set_device, (number,)) as pool:
        try:
            with triton.AsyncCompileMode(Loading(pool), ignore_errors=True):
                yield
        finally:
            # Whoever is interrupted while it waits would leave the mode on, and a further one is refused.
            sys.modules[triton.AsyncCompileMode.__module__].active_mode.set(None)
