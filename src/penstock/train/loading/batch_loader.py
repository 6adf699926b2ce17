"""The iterable that `ps.loader` returns: training's pipeline, driven by the user's own loop."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.folder import Graph
from penstock.pipeline.batch_rows import HostCarrier, ReclaimedBuffers
from penstock.pipeline.grouped_batches import ReusedBatches
from penstock.pipeline.schedule import START, Planned, Position, Schedule
from penstock.pipeline.stages import AheadLoader, AheadSampler, Batch, Carrier, Loaded, Loader, StageError
from penstock.train.dataset.inputs import Inputs, with_edge_fields
from penstock.train.dataset.prepared_graph import prepared, with_empty_relations
from penstock.train.loading.batch_fields import BatchFields
from penstock.train.loading.given_graph import GivenGraph
from penstock.train.loading.graph_batch import GraphBatch
from penstock.train.loading.options import LoaderJob
from penstock.train.loading.seed_source import AUTO, Seeds, is_shuffled, seed_source
from penstock.train.run_context import chosen_device
from penstock.train.tasks.task import SeedSource

# The share of every batch for each of several processes, in a loop that the user distributes.


class RankShares:
    """A `BatchPlan`: one rank's shares of a schedule's batches, which are `world` times as large as a share.

    Every rank has as many batches as the others, and all shares of a batch together are the batch that one process with
    so many seeds would have. The last batch of an epoch is divided evenly; where it has fewer seeds than there are
    ranks, some of its seeds are repeated, so that no rank's share is empty.
    """

    def __init__(self, schedule: Schedule, rank: int, world: int) -> None:
        if world < 1 or not 0 <= rank < world:
            raise PenstockError(
                f"rank is {rank} and world is {world}: give a rank from 0 to world - 1.", code="value-out-of-range"
            )
        self._schedule, self._rank, self._world = schedule, rank, world
        self.batch_size = -(-schedule.batch_size // world)

    def from_position(self, start: Position = START) -> Iterator[Planned]:
        return map(self.share, self._schedule.from_position(start))

    def share(self, planned: Planned) -> Planned:
        """This rank's seeds of a batch."""
        if self._world == 1:
            return planned
        seeds: Array = planned.seeds
        if len(seeds) < self._world:
            seeds = np.resize(seeds, self._world)
        first, last = (len(seeds) * rank // self._world for rank in (self._rank, self._rank + 1))
        return planned._replace(seeds=seeds[first:last], whole=len(seeds))


class BatchLoader:
    """Each iteration over it is one epoch of batches.

    Batches are those that `ps.train` with the same seed learns from. They are drawn and gathered ahead, by a GPU that
    holds the graph or by threads that end with the iteration, or when the iterator is dropped.
    """

    def __init__(
        self,
        given: GivenGraph,
        job: LoaderJob,
        seeds: Seeds = AUTO,
        shuffle: bool | None = None,
        rank: int = 0,
        world: int = 1,
        reserve: float = 0.5,
        transform: Callable[[Any], Any] | None = None,
        negatives: bool = False,
    ) -> None:
        """`shuffle` None: shuffle only the training split. `reserve`: the share of a GPU's memory left for the model.

        `transform` is called with each batch, and its result is yielded instead. `negatives`: whether the user asked
        for negatives.
        """
        self.data, self._transform = given.data, transform
        self.device, ready = chosen_device(job.device), prepared(given.graph, job)
        ready = _numbered(ready if ready.edges else with_empty_relations(ready), job)
        known = {kind: [name for name in edges.fields if name != "e_id"] for kind, edges in ready.edges.items()}
        self.job = job = with_edge_fields(job, known)
        self._source, self.graph = seed_source(given, ready, job, seeds, negatives)
        shuffled = is_shuffled(seeds, self._source) if shuffle is None else shuffle
        if shuffled and job.reuse_batches:
            raise PenstockError(
                "reuse_batches uses the batches of the first epoch again: set shuffle to False for that.",
                code="conflicting-options",
            )
        messages = getattr(self._source, "messages", None)
        self.inputs = Inputs(self.graph, job, self.device, learnable=False)
        self.inputs.carry_edges(job, self.graph, messages, own_module=True)
        self._fields = BatchFields(messages or self.graph, job, self._source, given)
        order: dict[str, Any] = {"shuffled_from": 0} if shuffled else {"shuffled_from": None, "as_given": True}
        items = self._source.items if shuffled else _as_given(self._source, self.graph)
        self._schedule = Schedule(items, self._source.batch_size * world, job.draw_seed, **order)
        self._shares = RankShares(self._schedule, rank, world)
        self._reused = ReusedBatches(self._schedule, job.reuse_mb) if job.reuse_batches else None
        self._draw: Callable[[Planned], Batch] = self._source.sample
        rows = self.inputs.sources, self.inputs.scale
        self._carrier: Carrier = HostCarrier(*rows, edges=self.inputs.edges, pool=ReclaimedBuffers())
        self._make_sampler: Callable[[], AheadSampler] | None = None
        self._samplers: list[AheadSampler] = []
        if is_placed_on(self.device):
            self._place(reserve)
        self._at, self._begun, self._iteration = START, False, 0

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._at.epoch

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        schedule = self._schedule
        incomplete = self.job.drop_last and len(schedule.items) % schedule.batch_size > 0
        return schedule.batches - incomplete

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            self._at = Position(self._at.epoch + 1, 0)
        self._begun = True
        self._iteration += 1
        return self._epoch(self._at, self._iteration)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0, of the next iteration."""
        self._move(Position(epoch, 0))

    def state_dict(self) -> dict[str, int]:
        """The position of the next batch, and the settings that batches depend on."""
        return {**self._facts(), "epoch": self._at.epoch, "batch": self._at.batch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after the last batch yielded before the state was taken; states of other loaders are refused."""
        if not isinstance(state, Mapping):
            raise PenstockError(
                f"A loader's state is what its state_dict() gave, not a {type(state).__name__}: give that.",
                code="wrong-type",
            )
        # States of earlier releases do not name the version of their draws, which was 1.
        state = {"draws": 1, **state}
        for name, own in self._facts().items():
            if state.get(name) != own:
                raise PenstockError(
                    f"The state is of a loader whose {name} is {state.get(name)!r}, and this one's is {own}: make the"
                    f" loader with {name}={state.get(name)!r}, as it was.",
                    code="mismatched-inputs",
                )
        epoch, batch = state.get("epoch"), state.get("batch")
        if not isinstance(epoch, int) or not isinstance(batch, int) or epoch < 0 or not 0 <= batch < len(self):
            raise PenstockError(
                f"The state is at epoch {epoch!r}, batch {batch!r}, and an epoch has {len(self)} batches: use a"
                " state of this loader.",
                code="value-out-of-range",
            )
        self._move(Position(epoch, batch))

    def __repr__(self) -> str:
        seeds = f"{len(self._schedule.items):,} {'edges' if 'edge' in self._source.name else 'items'}"
        return f"BatchLoader({self.graph.name!r}, {seeds}, {len(self):,} batches, on {self.device})"

    def _facts(self) -> dict[str, int]:
        sizes = {"items": len(self._schedule.items), "batch_size": self._schedule.batch_size}
        return {"seed": self.job.seed, "draws": self.job.draws, **sizes}

    def _move(self, position: Position) -> None:
        if position.epoch < 0:
            raise PenstockError(f"epoch is {position.epoch}: give 0 or more.", code="value-out-of-range")
        self._at, self._begun = position, False
        # An earlier iteration that is still in progress no longer changes the loader's position.
        self._iteration += 1

    def _epoch(self, start: Position, iteration: int) -> Iterator[Any]:
        batches = len(self) - start.batch
        planned = (each for each, _ in zip(self._shares.from_position(start), range(batches), strict=False))
        with self._flow(planned) as flow:
            for loaded in flow:
                if iteration == self._iteration:
                    epoch, number = loaded.position
                    last = number + 1 == len(self)
                    self._at = Position(epoch + 1, 0) if last else Position(epoch, number + 1)
                    self._begun = not last
                yield self._given_out(GraphBatch(loaded.planned, loaded.batch, self._fields, self.device))
                if loaded.buffers and loaded.batch.ready is not None:
                    # Wait: its rows may still be copied from the buffer that the next batch will fill.
                    loaded.batch.ready.synchronize()

    def _given_out(self, batch: GraphBatch) -> Any:
        """The batch, transformed if the user asked for that."""
        given = batch.to_pyg() if self.job.as_pyg else batch
        return given if self._transform is None else self._transform(given)

    @contextmanager
    def _flow(self, planned: Iterator[Planned]) -> Iterator[Iterable[Loaded]]:
        """The planned batches, prepared ahead by threads, or by a device alone."""
        if self._make_sampler is not None:
            sampler = self._free_sampler(self._make_sampler)
            try:
                with closing(iter(AheadLoader(planned, sampler, self._carrier, self._label))) as ahead:
                    yield ahead
            except GeneratorExit:
                # The loop was left early. After an error a sampler may lack slots, so it is not reused.
                self._samplers.append(sampler)
                raise
            self._samplers.append(sampler)
            return
        draw = self._draw if self._reused is None else self._reused.drawn_by(self._draw)
        with Loader(planned, draw, self._carrier, self._label, self.job) as loader:
            yield _unwrapped(loader)

    def _free_sampler(self, make: Callable[[], AheadSampler]) -> AheadSampler:
        """A sampler that no iteration uses; iterations in progress at the same time have one each."""
        try:
            return self._samplers.pop()
        except IndexError:
            return make()

    def _label(self, batch: Batch) -> None:
        if batch.links is not None:
            # Labels of vertices are a field like any other.
            self._source.label(batch)
        if not is_placed_on(self.device):
            self._fields.make_ahead(batch)

    def _place(self, reserve: float) -> None:
        """Place topology and features on the GPU as far as they fit beside what is reserved for the model."""
        # Triton is imported where there is a device for it.
        from penstock.train.device.batch_placement import BatchParts, place_batches

        parts = BatchParts(self.job, self.graph, self.inputs, self._source)
        placed = place_batches(parts, self._shares, reserve)
        self._draw = placed.draw
        if placed.make_sampler is not None:
            self._make_sampler = partial(placed.make_sampler, self._fields.merging)
            # Its draws are captured here: during a capture no other thread may draw random numbers on the device.
            self._samplers.append(self._make_sampler())
        # A stream of its own, so that the user's kernels need not wait for it.
        placed.carrier.finish = self._merge_ahead
        self._carrier = placed.carrier

    def _merge_ahead(self, batch: Batch) -> None:
        """Merge a batch's edges into one list, if earlier batches were asked for it."""
        fields = self._fields
        if fields.merging.is_set() and batch.merged is None:
            batch.merged = fields.merged(batch)


def is_placed_on(device: torch.device) -> bool:
    """Whether topology and features are placed on a device, as far as they fit."""
    return device.type == "cuda"


def _numbered(graph: Graph, job: LoaderJob) -> Graph:
    """The graph, with positions recorded on its edges if some of them will be held out."""
    if not any(job.held_out):
        return graph
    edges = dict(graph.edges)
    for kind, each in graph.edges.items():
        if "e_id" not in each.fields:
            numbers = np.arange(each.count, dtype=index_dtype(each.count))
            edges[kind] = replace(each, fields={**each.fields, "e_id": numbers})
    return Graph(graph.nodes, edges, graph.name, graph.path, graph.origin)


def _as_given(source: SeedSource, graph: Graph) -> Array:
    """A source's items in the user's order: edges in the order of the `edge_index` that was passed."""
    if not getattr(source, "goes_through_lists", False):
        return source.items
    numbers = graph.edges[source.edge_type].fields.get("e_id")  # type: ignore[attr-defined]
    return source.items if numbers is None else source.items[np.argsort(numbers[source.items], kind="stable")]


def _unwrapped(flow: Loader) -> Iterator[Any]:
    """The pipeline's batches; an error in a stage is raised as the original exception."""
    try:
        yield from flow
    except StageError as error:
        raise (error.__cause__ or error) from None
