"""The five stages of mini-batch training: seeds, sample, gather, transfer, compute."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch

from penstock.graph.arrays import Array
from penstock.pipeline.buffers import BufferPool
from penstock.pipeline.clock import Recorder, StageTime
from penstock.pipeline.flow import Flow, Stage
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.schedule import Planned, Position
from penstock.sampling.block import MiniBatch, TypedBatch
from penstock.store.local import LocalStore

Batch = MiniBatch | TypedBatch


@dataclass
class Loaded:
    """A batch on its way, with the buffers it occupies."""

    planned: Planned
    batch: Batch
    buffers: list[Array] = field(default_factory=list)

    @property
    def position(self) -> Position:
        """Where in the run the batch stands."""
        return self.planned.position

    @property
    def examples(self) -> int:
        """What the loss is over: edges of a task on edges, else the batch's seeds."""
        if self.batch.links is not None:
            return len(self.planned.seeds)
        seeds = self.batch.seeds
        return sum(map(len, seeds.values())) if isinstance(seeds, dict) else len(seeds)


class Loader:
    """Iterates over batches whose features and labels are on the device; each is valid until the next is asked for.

    `sample` turns a planned batch into blocks, `fields` names the stored features of each node type that has any, and
    `label` adds what the task compares with. The caller is the fifth stage.
    """

    def __init__(
        self,
        planned: Iterable[Planned],
        sample: Callable[[Planned], Batch],
        store: LocalStore,
        fields: dict[str, str],
        label: Callable[[Batch], None],
        options: PipelineOptions,
        device: torch.device,
        scale: Callable[[torch.Tensor], torch.Tensor] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._sampler, self._store, self._fields, self._label = sample, store, fields, label
        self._device, self._scale, self._pool = device, scale, BufferPool()
        stages = [
            Stage("sample", self._sample, options.sample_threads, options.sample_depth),
            Stage("gather", self._gather, options.gather_threads, options.gather_depth),
            Stage("transfer", self._transfer, 1, options.transfer_depth),
        ]
        self._flow = Flow(planned, stages, ("seeds", "compute"), options.seeds_depth, recorder)

    def times(self) -> dict[str, StageTime]:
        """Busy and waiting seconds of the five stages so far."""
        return self._flow.times()

    def aside(self) -> AbstractContextManager[None]:
        """Around what is no part of computing a batch: validation, checkpoints."""
        return self._flow.aside()

    def __enter__(self) -> Self:
        self._flow.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flow.close()

    def __iter__(self) -> Iterator[Loaded]:
        for loaded in self._flow:
            yield loaded
            for buffer in loaded.buffers:
                self._pool.give(buffer)

    def _sample(self, planned: Planned) -> Loaded:
        return Loaded(planned, self._sampler(planned))

    def _gather(self, loaded: Loaded) -> Loaded:
        for node_type, ids in loaded.batch.inputs.items():
            if node_type in self._fields:
                name = f"{node_type}/{self._fields[node_type]}"
                table = self._store.table(name)
                rows, buffer = self._pool.take((len(ids), *table.shape[1:]), table.dtype)
                loaded.buffers.append(buffer)
                loaded.batch.features[node_type] = self._store.pull(name, ids, out=rows)
        self._label(loaded.batch)
        return loaded

    def _transfer(self, loaded: Loaded) -> Loaded:
        batch = loaded.batch
        for node_type, rows in batch.features.items():
            x = torch.from_numpy(rows).to(self._device, torch.float32)
            batch.features[node_type] = x if self._scale is None else self._scale(x)
        if batch.labels is not None:
            batch.labels = on_device(batch.labels, self._device)
        return loaded


def on_device(values: Any, device: torch.device) -> Any:
    """An array, or a mapping of arrays, as tensors."""
    if isinstance(values, dict):
        return {name: on_device(each, device) for name, each in values.items()}
    return torch.as_tensor(values).to(device)
