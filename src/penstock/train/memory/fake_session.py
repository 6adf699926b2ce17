"""A session whose weights are fake for a while, so that its steps can be traced."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.nn.traced import Trace, tracing
from penstock.progress import SILENT
from penstock.train.memory.allocations import META, Allocations
from penstock.train.optimisers import make_optimiser
from penstock.train.session import Session

_LOOKED_AT = 1024
"""Rows of features whose zeros are counted."""


@contextmanager
def traced_session(session: Session, density: float) -> Iterator[Allocations]:
    """Within it the session's weights and optimiser are fake, and what a step allocates is noted; afterwards they are
    as before.

    Tensors without numbers have no device, and take the same bytes on each. `density` is the share of the input
    features that are not zero.
    """
    before, device, allocations = (session.optimiser, session.progress), session.inputs.device, Allocations()
    on_device = device.type == "cuda"
    trace = Trace(density, on_device)
    with allocations, tracing(trace), allocations.during("set-up"), _fake_weights(session.learned):
        session.optimiser = make_optimiser(session.learned.parameters(), session.job)
        session.inputs.device, session.progress = META, SILENT
        try:
            yield allocations
        finally:
            session.inputs.device = device
            session.optimiser, session.progress = before


def input_density(session: Session) -> float:
    """The share of the stored features that are not zero, of some rows of each node type."""
    read = filled = 0
    for source, nodes in ((session.inputs.fields[name], session.graph.nodes[name]) for name in session.inputs.fields):
        table = nodes.fields[source]
        rows = table[np.linspace(0, len(table) - 1, min(len(table), _LOOKED_AT)).astype(np.int64)]
        read, filled = read + rows.size, filled + int(np.count_nonzero(rows))
    return filled / read if read else 1.0


@contextmanager
def _fake_weights(module: nn.Module) -> Iterator[None]:
    """Parameters and buffers, replaced in their modules; one that several modules share stays shared."""
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
    made = torch.empty(value.shape, dtype=value.dtype)
    return nn.Parameter(made, value.requires_grad) if isinstance(value, nn.Parameter) else made
