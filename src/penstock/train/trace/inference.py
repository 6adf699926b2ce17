"""The validation at the end of an epoch, traced: exact inference on a device takes memory beside the steps'."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.sampling.device.block import on_device
from penstock.traced import memory_for
from penstock.train.layerwise.chunks import Sampled
from penstock.train.layerwise.engine import evaluating
from penstock.train.layerwise.host import HostPlan
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Session
from penstock.train.trace.allocations import META, Allocations
from penstock.train.trace.categories import ACTIVATIONS

_READ = 3
"""Chunks whose rows are there at once: of one that is computed, of the next, and of one that is being read."""
_GROWING = 8
"""Chunks of whole neighbourhoods that are looked at: their size doubles until they fill the working memory."""


def trace_inference(session: Session, prepare: Callable[[], Inference], allocations: Allocations) -> None:
    """The inference of the validation split, where the job has validations."""
    if session.job.evaluate_every < 0:
        return
    with allocations.during("validation"), memory_for(ACTIVATIONS):
        inference = prepare()
        if isinstance(inference.plan, HostPlan):
            _trace_chunks(session, inference, inference.plan)
        else:
            outputs = inference.outputs(_wanted(session))
            kept = [rows.float() for rows in outputs.values()]
            del outputs, kept


def _wanted(session: Session) -> dict[str, Array]:
    """The vertices whose outputs a validation reads; of tasks on edges any may be among them."""
    target = getattr(session.task, "node_type", None)
    if target is not None:
        return {target: np.sort(session.task.items_of("val"))}
    return {name: np.arange(nodes.count) for name, nodes in session.graph.nodes.items()}


def _trace_chunks(session: Session, inference: Inference, plan: HostPlan) -> None:
    """The first chunks of every layer, which fill the working memory as all others do."""
    model: Any = session.model
    with torch.no_grad(), evaluating(session.model), session.precision():
        if not (getattr(model, "layerwise", False) and plan.by_layers):
            _trace_neighbourhoods(session, inference, plan)
            return
        plan.start_everywhere(model.num_layers)
        widths: dict[str, int] = {}
        for number in range(model.num_layers):
            chunks = list(islice(plan.chunks(number), 2))
            held = [_read(plan, sampled, widths) for sampled in (chunks[:1] * _READ if len(chunks) > 1 else chunks)]
            for sampled, x in held[:1]:
                out = inference.engine.layer(number, sampled, x)
                given = dict.fromkeys(session.graph.nodes, out.shape[1])
                del out, x
            widths = given


def _trace_neighbourhoods(session: Session, inference: Inference, plan: HostPlan) -> None:
    ((name, rows), *_) = _wanted(session).items()
    plan.start({name: rows}, 0, 0)
    found = max(islice(plan.neighbourhoods(name, rows), _GROWING), key=lambda each: each.num_inputs)
    held = [_read(plan, found, {}) for _ in range(_READ if len(found.chunk.rows) < len(rows) else 1)]
    inference.engine.forward(*held[0])


def _read(plan: HostPlan, sampled: Sampled, widths: dict[str, int]) -> tuple[Sampled, dict[str, Any]]:
    """A chunk on the device with the rows it reads: of the input, or of a level whose widths are known."""
    x = {name: _rows(plan, name, ids, widths) for name, ids in _present(sampled)}
    return sampled._replace(blocks=[on_device(block, META) for block in sampled.blocks]), x


def _rows(plan: HostPlan, name: str, ids: Array, widths: dict[str, int]) -> Any:
    return torch.empty(len(ids), widths[name], device=META) if widths else plan.first(name, ids)


def _present(sampled: Sampled) -> Iterator[tuple[str, Array]]:
    return ((name, ids) for name, ids in sampled.inputs.items() if len(ids))
