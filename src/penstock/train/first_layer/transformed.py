"""The host keeps the first layer's inputs and transforms them: rows that become narrower are fewer bytes to move.

The weights change in every step, so the product is computed in the step and not ahead of it; reading rows is ahead.
"""

from collections.abc import Sequence
from typing import Any

import torch

from penstock.graph.arrays import Array
from penstock.nn.first_rows import HostRows
from penstock.pipeline.row_reader import Move, PlainReading, Reading, RowReader
from penstock.sampling.block import MiniBatch
from penstock.store.source import RowSource
from penstock.train.job import Job


class TransformedReading(PlainReading):
    """The rows of all vertices that a batch needs; they stay on the host."""

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> HostRows:
        """See `Reading.arrived`."""
        rows: Any = arrays[0]
        return HostRows(torch.as_tensor(rows).to(torch.float32), device)


class TransformedInputs:
    """Every batch is transformed on the host."""

    def reading(self, batch: MiniBatch[Any], node_type: str, source: RowSource) -> Reading:
        """See `RowReader.reading`."""
        return TransformedReading(batch.vertices[node_type], source)


def transformed_inputs(model: Any, job: Job) -> RowReader:
    """Of a job whose layer can transform its inputs first."""
    return TransformedInputs()
