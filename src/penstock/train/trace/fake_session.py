"""A session with meta weights, so that its steps can be traced."""

import functools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.progress import SILENT
from penstock.trace.allocations import META, OPTIMISER, WEIGHTS, Allocations
from penstock.traced import Trace, memory_for, tracing
from penstock.train.compute_device import UNKNOWN, assumed_memory, device_memory_of, is_assumed
from penstock.train.optimisers import make_optimiser
from penstock.train.session import Session

_OPTIMISER_MODULES = ("torch.optim.", "torch.utils._foreach_utils")
_SUPPORTED_DEVICES = (
    "_get_fused_kernels_supported_devices",
    "_get_foreach_kernels_supported_devices",
    "_get_capturable_supported_devices",
)
"""Functions of torch that list the devices for which optimisers have fused or for-each steps."""
_LOOKED_AT = 1024
"""Rows of features in which zeros are counted."""


@contextmanager
def traced_session(session: Session, density: float, on_device: bool) -> Iterator[Allocations]:
    """Give the session meta weights and an optimiser over them, and record what a step allocates; both are restored
    afterwards.

    `density` is the share of the input features that are not zero. With `on_device` the session computes as on a GPU,
    which need not exist: its device is torch's `meta`, and what it does on the host is not recorded.
    """
    inputs, before = session.inputs, (session.optimiser, session.schedule, session.progress)
    device, carrier, sources = inputs.device, inputs.carrier, dict(inputs.sources)
    allocations = Allocations(on_device)
    trace = Trace(density, on_device, allocations.empty_cache, allocations.moves)
    memory = assumed_memory(_free(device), lambda: allocations.now) if on_device else nullcontext()
    with memory, allocations, tracing(trace), _gpu_optimisers(on_device), ExitStack() as restored:
        restored.callback(inputs.sources.update, sources)
        restored.callback(setattr, inputs, "carrier", carrier)
        restored.callback(setattr, inputs, "device", device)
        inputs.device, session.progress = META, SILENT
        try:
            with allocations.during("set-up"):
                with memory_for(WEIGHTS):
                    restored.enter_context(_fake_weights(session.learned))
                with memory_for(OPTIMISER):
                    session.optimiser = _traced_optimiser(session, allocations)
                restored.enter_context(allocations.following(session.learned))
                yield allocations
        finally:
            # What the trace has kept is freed before the weights are restored.
            session.optimiser.zero_grad(set_to_none=True)
            session.optimiser.state.clear()
            session.optimiser, session.schedule, session.progress = before


def _free(device: torch.device) -> int:
    """Free bytes of the GPU that `meta` stands for; unlimited if it does not exist."""
    known = is_assumed() or (device.type == "cuda" and torch.cuda.is_available())
    return device_memory_of(device)[0] if known else UNKNOWN


def _traced_optimiser(session: Session, allocations: Allocations) -> torch.optim.Optimizer:
    """An optimiser of the meta weights, whose steps are recorded as updates."""
    optimiser = make_optimiser(session.learned.parameters(), session.job, META)
    update: Any = optimiser.step
    begin: Any = optimiser._init_group  # type: ignore[attr-defined]

    def step(*given: Any, **named: Any) -> Any:
        with allocations.updating():
            return update(*given, **named)

    @functools.wraps(begin)
    def init_group(*given: Any, **named: Any) -> Any:
        with allocations.updating(step=False):
            return begin(*given, **named)

    optimiser.step, optimiser._init_group = step, init_group  # type: ignore[method-assign, attr-defined]
    return optimiser


@contextmanager
def _gpu_optimisers(on_device: bool) -> Iterator[None]:
    """Have optimisers treat `meta` as a device with torch's fused kernels, like the GPU that it stands for."""
    if not on_device:
        yield
        return
    with ExitStack() as restored:
        for module in [each for name, each in sys.modules.items() if name.startswith(_OPTIMISER_MODULES)]:
            for name in (each for each in _SUPPORTED_DEVICES if hasattr(module, each)):
                known = getattr(module, name)
                restored.callback(setattr, module, name, known)
                setattr(module, name, lambda *given, known=known, **named: [*known(*given, **named), "meta"])
        yield


def input_density(session: Session) -> float:
    """The share of stored features that are not zero, in some rows of each node type."""
    read = filled = 0
    for name, field in session.inputs.fields.items():
        nodes = session.graph.nodes[name]
        chosen = np.linspace(0, nodes.count - 1, min(nodes.count, _LOOKED_AT)).astype(np.int64)
        # The features of a partitioned graph are at the stores.
        here = nodes.fields.get(field)
        rows = session.inputs.sources[name].read(chosen) if here is None else here[chosen]
        read, filled = read + rows.size, filled + int(np.count_nonzero(rows))
    return filled / read if read else 1.0


@contextmanager
def _fake_weights(module: nn.Module) -> Iterator[None]:
    """Replace parameters and buffers by meta tensors; one that several modules share stays shared."""
    made: dict[int, Tensor] = {}
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for part in module.modules():
        kinds: tuple[dict[str, Any], ...] = part._parameters, part._buffers
        for held in kinds:
            before.append((held, dict(held)))
            for name, value in held.items():
                if value is not None:
                    held[name] = made.setdefault(id(value), _fake(value))
    try:
        yield
    finally:
        for held, values in before:
            held.clear()
            held.update(values)


def _fake(value: Tensor) -> Tensor:
    made = torch.empty(value.shape, dtype=value.dtype, device=META)
    return nn.Parameter(made, value.requires_grad) if isinstance(value, nn.Parameter) else made
