"""What tasks on edges share: batches of edges, and exact rows of their ends."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from penstock.graph.blocks import ranges
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType
from penstock.pipeline.loading import Batch
from penstock.pipeline.schedule import Planned
from penstock.progress import Progress
from penstock.sampling.links import EdgeBatcher
from penstock.train.inference import Inference
from penstock.train.samplers import Drawing

_BLOCK_BYTES = 64 << 20
"""What a head computes of pairs at a time."""
_ARRAYS = 8
"""Arrays as wide as a row that a head makes of a pair."""

Rows = torch.Tensor | dict[str, torch.Tensor]


def sample_ends(batcher: EdgeBatcher, drawing: Drawing, planned: Planned) -> Batch:
    """A batch of edges, and the neighbourhoods of their ends without the edges themselves."""
    links = batcher.batch(planned.seeds, planned.key)
    batch = drawing.sample(links.nodes, planned, exclude=links.exclude)
    batch.links = links
    return batch


def end_rows(out: Rows, kind: EdgeType) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's rows of the sources' and of the destinations' types."""
    return (out, out) if isinstance(out, torch.Tensor) else (out[kind[0]], out[kind[2]])


def pair_blocks(count: int, width: int) -> Iterator[slice]:
    """All of so many pairs, as many at a time as a head may compute of rows `width` wide."""
    size = max(1, _BLOCK_BYTES // (4 * _ARRAYS * width))
    return (slice(start, stop) for start, stop in ranges(count, size))


def all_rows(graph: Graph, kind: EdgeType, inference: Inference, progress: Progress) -> tuple[Any, Any]:
    """Exact rows of every vertex that can stand at either end."""
    wanted = {name: np.arange(graph.nodes[name].count) for name in (kind[0], kind[2])}
    out = inference.outputs(wanted, progress)
    return out[kind[0]], out[kind[2]]
