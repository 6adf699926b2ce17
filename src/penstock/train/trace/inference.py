"""The validation at the end of an epoch, traced: exact inference on a device takes memory beside the steps'."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.sampling.device.block import on_device
from penstock.traced import current_trace, is_gpu, memory_for
from penstock.train.layerwise.chunks import Sampled
from penstock.train.layerwise.engine import evaluating
from penstock.train.layerwise.host import HostPlan
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Session
from penstock.train.trace.allocations import META, Allocations
from penstock.train.trace.categories import ACTIVATIONS

_READ = 2
"""Chunks whose rows are there at once: of one that is computed, and of the next."""
_GROWING = 8
"""Chunks of whole neighbourhoods that are looked at: their size doubles until they fill the working memory."""


def trace_inference(session: Session, prepare: Callable[[], Inference], allocations: Allocations) -> None:
    """The inference of the validation split, where the job has validations."""
    if session.job.evaluate_every < 0:
        return
    with allocations.during("validation"), memory_for(ACTIVATIONS):
        by_layers = getattr(session.model, "layerwise", False)
        # A model that is not made of layers reads whole neighbourhoods from the host's lists.
        inference = prepare() if by_layers else session.whole_graph_inference()
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
    """The first chunks of every layer, which fill the working memory as all others do, and the layers' rows."""
    model: Any = session.model
    with torch.no_grad(), evaluating(session.model), session.precision():
        if not (getattr(model, "layerwise", False) and plan.by_layers):
            _trace_neighbourhoods(session, inference, plan)
            return
        plan.start_everywhere(model.num_layers)
        widths, levels = session.inputs.widths, list[Any]()
        for number in range(model.num_layers):
            held = [_read(sampled, widths, inference) for sampled in islice(plan.chunks(number), _READ)]
            sampled, x = held[0]
            out = inference.engine.layer(number, sampled, x)
            widths = dict.fromkeys(session.graph.nodes, out.shape[1])
            # The level below is dropped when this one is complete.
            levels = [*levels[-1:], _level(session, plan, out.shape[1])]
            del out, x, held


def _level(session: Session, plan: HostPlan, width: int) -> Any:
    """The rows of a layer in the host's memory, where they fit the budget; where a GPU is traced they are not its."""
    rows = session.graph.num_nodes
    on_host = not is_gpu(session.inputs.device) and 4 * rows * width <= plan.budget
    return torch.empty(rows, width, device=META) if on_host else None


def _trace_neighbourhoods(session: Session, inference: Inference, plan: HostPlan) -> None:
    ((name, rows), *_) = _wanted(session).items()
    plan.start({name: rows}, 0, 0)
    of_edges = getattr(session.task, "times", None)
    # Of edges by time: all of the graph is there after the last of them.
    times = None if of_edges is None else np.full(len(rows), np.nanmax(of_edges.values))
    found = max(islice(plan.neighbourhoods(name, rows, times), _GROWING), key=lambda each: each.num_inputs)
    repeated = _READ if len(found.chunk.rows) < len(rows) else 1
    held = [_read(found, session.inputs.widths, inference) for _ in range(repeated)]
    out = inference.engine.forward(*held[0])
    outputs = [out if isinstance(out, torch.Tensor) else out.get(name)]
    del out
    if repeated > 1 and outputs[0] is not None:
        # The outputs of earlier chunks are there when later ones are computed, and are joined at the end.
        outputs = [outputs[0].new_empty(len(rows), *outputs[0].shape[1:])]
        inference.engine.forward(*held[0])
        outputs.append(torch.empty_like(outputs[0]))
    del outputs


def _read(sampled: Sampled, widths: dict[str, int], inference: Inference) -> tuple[Sampled, dict[str, Any]]:
    """A chunk where it is computed, with the rows it reads: of the input, or of the level below."""
    x = {name: torch.empty(len(ids), widths[name], device=META) for name, ids in sampled.inputs.items() if len(ids)}
    sampled = sampled._replace(blocks=inference.engine.edges.attached(sampled.blocks))
    trace = current_trace()
    if trace is not None and trace.on_device:
        sampled = sampled._replace(blocks=[on_device(block, META) for block in sampled.blocks])
    return sampled, x
