"""Triton's `jit` for Penstock's kernels, which can be compiled ahead of their first launch, several at a time.

A first run on a machine has some forty kernels to compile. Launched one after the other, each waits for its compiler,
for the C compiler that makes its launcher, and for the driver that loads it. Where the run's steps are traced within
`compiled_ahead`, their launches run nothing and hand the kernels to threads.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import triton
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
        ahead = compiles_kernels()
        compiled = super().run(*args, grid=grid, warmup=warmup or ahead, **options)
        future: Future[Any] | None = getattr(compiled, "future", None)
        if ahead and future is not None:
            future.add_done_callback(_load)
        return compiled


def _load(compiled: "Future[Any]") -> None:
    """Make a kernel's launcher and load it, in the thread that compiled it; a failure shows at the first launch."""
    if compiled.exception() is None:
        _ = compiled.result().run


def can_compile_ahead() -> bool:
    """Whether Triton is of a version that compiles in threads, and compiles at all."""
    return hasattr(triton, "AsyncCompileMode") and not triton.knobs.runtime.interpret


@contextmanager
def compiled_ahead(device: torch.device, threads: int) -> Iterator[None]:
    """Within it, threads compile the kernels of what is traced under `penstock.traced.compiling`.

    A launch waits for its own kernel, and the end of the context for all of them.
    """
    # Threads begin with the first GPU.
    number = torch.cuda.current_device() if device.index is None else device.index
    with (
        ThreadPoolExecutor(threads, "compile", torch.cuda.set_device, (number,)) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
    ):
        yield
