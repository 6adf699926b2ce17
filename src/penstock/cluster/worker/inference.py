"""Exact outputs of a model over a cut graph: every worker computes vertices of its own parts, layer after layer.

Outputs of a layer are kept at their vertices' owners, where the next layer reads them. Between two layers the workers
wait for each other.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.inputs import PartedInputs
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.progress import SILENT, Progress
from penstock.sampling import ALL, BatchKey
from penstock.sampling.device.block import on_device
from penstock.sampling.parts import parted_sampler
from penstock.train.batch_source import clock_for, layers_of
from penstock.train.device_full import INFERENCE, device_memory
from penstock.train.inference import evaluating
from penstock.train.reach import followed_relations
from penstock.train.session import Session
from penstock.train.worker_group import RegroupError

_SHARE = 8
"""A chunk's inputs take this part of the working memory."""
_FIRST = 256
"""Vertices of the first chunk; later ones are as large as the working memory allows."""
_ANY = BatchKey(0, 0, 0)


class InferenceTeam(Protocol):
    """The workers that compute outputs together, as one of them sees them."""

    rank: int
    world: int

    def barrier(self, name: str) -> None:
        """Wait until all workers of the round have come to a place; raises RegroupError when the round is over."""

    def holds(self) -> bool:
        """Whether the round is still that of all workers."""


class PartedInference:
    """As `train.inference.Inference`, by all workers of a round; vertices are named by their original numbers."""

    def __init__(self, session: Session, parts: Parts, team: InferenceTeam, name: str) -> None:
        self._session, self._parts, self._team, self._name = session, parts, team, name
        self._model: Any = session.model
        self._made: set[str] = set()
        self._shared = 0
        self._budget = (session.job.inference_mb << 20) // _SHARE
        self._clock = clock_for(session.job, session.graph)

    def outputs(
        self, wanted: dict[str, Array], progress: Progress = SILENT, hidden: bool = False
    ) -> dict[str, torch.Tensor]:
        """The outputs of vertices, in their order, to every worker."""
        if hidden:
            raise PenstockError(
                "Hidden outputs are not computed on several machines yet: use one.", code="unsupported-combination"
            )
        with device_memory(lambda: "in exact inference", INFERENCE):
            if not getattr(self._model, "layerwise", False) or self._clock is not None:
                # As on one machine: no vertex has one value that all its readers could share.
                return self._by_neighbourhoods(wanted)
            with self._in_round():
                return self._by_all(wanted)

    def in_parts(self, count: int, compute: Callable[[slice], Array]) -> Array:
        """What `compute` gives for a range of `count` items, one row each: every worker computes some, and has all."""
        self._shared += 1
        name, rank, world = f"{self._name}-{self._shared}", self._team.rank, self._team.world
        with self._in_round():
            bounds = [count * each // world for each in range(world + 1)]
            own = compute(slice(bounds[rank], bounds[rank + 1]))
            if world == 1:
                return own
            exchange = self._parts.exchange
            exchange.keep(name, own)
            self._team.barrier(f"kept-{name}")
            found = exchange.joined(name, np.diff(bounds).tolist())
            self._team.barrier(f"had-{name}")
            exchange.forget(name)
            return found

    @contextmanager
    def _in_round(self) -> Iterator[None]:
        """A task that was started again has lost what others read of it: then the round is over, and all done anew."""
        try:
            yield
        except PenstockError as error:
            if self._team.holds():
                raise
            raise RegroupError(str(error)) from error

    def _by_all(self, wanted: dict[str, Array]) -> dict[str, torch.Tensor]:
        self._settle()
        with torch.no_grad(), evaluating(self._session.model), self._session.precision():
            for number, types in enumerate(self._types(list(wanted))):
                self._compute(number, types)
                self._team.barrier(f"level-{self._name}-{number}")
            found = {name: self._collect(name, ids) for name, ids in wanted.items()}
        # Nobody drops what another still reads.
        self._team.barrier(f"read-{self._name}")
        self._drop()
        return found

    def _by_neighbourhoods(self, wanted: dict[str, Array]) -> dict[str, torch.Tensor]:
        """Each worker computes some of the vertices from their whole neighbourhoods."""
        with self._in_round():
            self._settle()
        sampler = self._sampler(self._followed())
        found = {}
        for name, rows in wanted.items():

            def compute(some: slice, name: str = name, rows: Array = rows) -> Array:
                with torch.no_grad(), evaluating(self._session.model), self._session.precision():
                    return self._of_neighbourhoods(sampler, name, rows[some])

            found[name] = torch.from_numpy(self.in_parts(len(rows), compute)).to(self._session.inputs.device)
        return found

    def _of_neighbourhoods(self, sampler: Any, name: str, rows: Array) -> Array:
        """Outputs of some vertices by original number; float32, a row each, of no width where there are none."""
        new, outputs = self._parts.partition.new_ids(rows, name), list[Array]()
        for numbers, batch in self._chunks(sampler, name, new, None if self._clock is None else self._clock[1][rows]):
            x = {each: self._session.inputs.pull(each, ids) for each, ids in batch.inputs.items() if len(ids)}
            blocks = [self._near(block) for block in batch.blocks]
            out = self._model(blocks, x[name] if self._session.graph.is_homogeneous else x)
            rows_out = out if isinstance(out, torch.Tensor) else out[name]
            assert len(rows_out) == len(numbers)
            outputs.append(rows_out.float().cpu().numpy())
        return np.concatenate(outputs) if outputs else np.empty((0, self._session.task.out), np.float32)

    def _settle(self) -> None:
        """If the weights were restored, the owners' embeddings are too before anybody reads them."""
        inputs = self._session.inputs
        assert isinstance(inputs, PartedInputs)
        if inputs.tables:
            inputs.settle()
            self._team.barrier(f"settled-{self._name}")

    def _types(self, wanted: list[str]) -> list[list[str]]:
        """For every layer, the node types whose outputs are needed."""
        needed = [wanted]
        for kinds in self._hops()[:-1]:
            read = {kind[0] for kind in kinds if kind[2] in needed[0]}
            needed.insert(0, [name for name in self._session.graph.nodes if name in read or name in needed[0]])
        return needed

    def _hops(self) -> list[list[EdgeType]]:
        """The relations that layers follow, the last one first."""
        hops = self._followed()
        layers: int = self._model.num_layers
        return [hops[min(place, len(hops) - 1)] for place in range(layers)]

    def _followed(self) -> list[list[EdgeType]]:
        """The relations of every hop, counted from the seeds."""
        return followed_relations(self._session.graph, self._session.job.fanouts, layers_of(self._session.job))

    def _sampler(self, hops: list[list[EdgeType]]) -> Any:
        """Whole lists, over some hops."""
        job, homogeneous = self._session.job, self._session.graph.is_homogeneous
        fanouts: list[Any] = [ALL if homogeneous else dict.fromkeys(hop, ALL) for hop in hops]
        return parted_sampler(
            self._parts.partition,
            fanouts,
            weight=job.weight,
            totals=True,
            time=job.time,
            local=self._parts.owned,
            channels=self._parts.lists,
            absent=self._parts.absent,
            vertex_times=self._parts.vertex_times(job.time),
        )

    def _compute(self, number: int, types: list[str]) -> None:
        """One layer, for this worker's vertices."""
        sampler = self._sampler([self._hops()[self._model.num_layers - 1 - number]])
        homogeneous = self._session.graph.is_homogeneous
        for name in types:
            for first, last in self._ranges(name):
                for rows, batch in self._chunks(sampler, name, range(first, last)):
                    x = {each: self._fetch(number, each, ids) for each, ids in batch.inputs.items() if len(ids)}
                    given = x[name] if homogeneous else x
                    out = self._model.layer(number, self._near(batch.blocks[0]), given)
                    self._keep(number, name, rows, out if homogeneous else out[name])

    def _chunks(
        self, sampler: Any, name: str, vertices: Array | range, times: Array | None = None
    ) -> Iterator[tuple[Array, Any]]:
        """Vertices with their whole lists, as many as the working memory holds; `times` are theirs as seeds."""
        size, width = _FIRST if times is None else 1, max(self._session.inputs.widths.values())
        width, start = max(width, self._session.job.hidden), 0
        while start < len(vertices):
            rows = np.asarray(vertices[start : start + size])
            seen = {} if times is None else {"times": times[start : start + size]}
            batch = sampler.sample(rows if self._session.graph.is_homogeneous else {name: rows}, _ANY, **seen)
            load = 4 * width * sum(map(len, batch.inputs.values())) + 16 * batch.blocks[0].num_edges
            if load > self._budget and len(rows) > 1:
                size = len(rows) // 2
                continue
            yield rows, batch
            start += len(rows)
            if 2 * load <= self._budget:
                size *= 2

    def _fetch(self, number: int, name: str, ids: Array) -> torch.Tensor:
        """What a layer reads of some vertices."""
        if number > 0:
            return self._pull(number - 1, name, ids)
        x = self._session.inputs.pull(name, ids)
        prepared = self._model.prepare(x if self._session.graph.is_homogeneous else {name: x})
        rows: torch.Tensor = prepared if self._session.graph.is_homogeneous else prepared[name]
        return rows

    def _pull(self, number: int, name: str, ids: Array) -> torch.Tensor:
        """What a layer has given for some vertices."""
        rows = torch.from_numpy(self._parts.store.pull(self._level(number, name), ids))
        return rows.to(self._session.inputs.device)

    def _near(self, block: Any) -> Any:
        """A block where the model computes."""
        device = self._session.inputs.device
        return block if device.type == "cpu" else on_device(block, device)

    def _keep(self, number: int, name: str, rows: Array, out: torch.Tensor) -> None:
        field = self._level(number, name)
        if field not in self._made:
            self._parts.store.make(field, out.shape[1])
            self._made.add(field)
        self._parts.store.push(field, rows, out.float().cpu().numpy())

    def _collect(self, name: str, ids: Array) -> torch.Tensor:
        """The answer for some vertices, from the levels that it is made of."""
        new = self._parts.partition.new_ids(ids, name)
        layers: int = self._model.num_layers
        numbers = range(layers) if self._model.needs_all_outputs else [layers - 1]
        levels = [self._pull(n, name, new) for n in numbers]
        if self._session.graph.is_homogeneous:
            joined: torch.Tensor = self._model.join(levels)
            return joined
        by_type: dict[str, torch.Tensor] = self._model.join([{name: level} for level in levels])
        return by_type[name]

    def _drop(self) -> None:
        if self._team.rank == 0:
            for name in self._session.graph.nodes:
                for number in range(self._model.num_layers):
                    self._parts.store.drop(self._level(number, name))

    def _level(self, number: int, name: str) -> str:
        return f"{name}/level-{self._name}-{number}"

    def _ranges(self, name: str) -> Iterator[tuple[int, int]]:
        """New numbers of this worker's vertices: its share of its machine's parts, or of parts that no worker is at."""
        layout, book = self._parts.member.setup.layout, self._parts.partition.book
        workers = layout.of_kind("worker")
        for part in range(book.parts):
            near = [task.rank for task in workers if part in task.parts] or [task.rank for task in workers]
            if self._team.rank in near:
                first, last = book.range(part, name)
                place, count = near.index(self._team.rank), last - first
                yield first + count * place // len(near), first + count * (place + 1) // len(near)
