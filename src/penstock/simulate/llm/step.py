"""One training step as a workload, whose iterations are steps: what devices compute, in what order, and what they send.

Kinds of tasks: `forward`, `backward`, `update`, and as delays `phases` (of an all-to-all's schedule) and `hops` (of a
ring or tree); `edge` and `place` take no time. Kinds of flows: `ep-forward`, `ep-backward` (all-to-alls of experts),
`pp-forward`, `pp-backward` (between stages; `pp-interleaved-forward` and so on where stages have several chunks),
`reduce` and `gather` (gradients and parameters, over data ranks).
"""

from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.hardware.machines import Network
from penstock.simulate.llm.collectives import Bucket, DeviceWorkload, Experts, Marks, add_gradients, in_pairs
from penstock.simulate.llm.fabric import Fabric, Image
from penstock.simulate.llm.job import Costs, LlmJob
from penstock.simulate.llm.model import Work, order_of
from penstock.simulate.workload import Item, Workload

DELAYS = ("phases", "hops")
"""Kinds of tasks that are communication."""
_MOST_DEVICES = 512
_MOST_ITEMS = 2_000_000
"""The most tasks and flows of a step that are held in memory."""


@dataclass(frozen=True, eq=False)
class LlmStep:
    """A step on its network."""

    load: Workload
    network: Network
    placement: Array  # int32 [tasks]: device
    devices: int


def build_step(job: LlmJob) -> LlmStep:
    """The workload of a job's step, its network, and where its tasks are."""
    _check_size(job)
    drawing = _StepBuilder(job)
    for stage in range(job.parallel.pipeline):
        drawing.add_stage(stage)
    drawing.join_stages()
    add_gradients(job, drawing.costs, drawing.workload, drawing.buckets())
    load, placement = drawing.workload.build()
    network = Fabric(job.servers, drawing.seats, drawing.images, job.seed).network(drawing.names)
    return LlmStep(load, network, placement, len(drawing.seats))


def _check_size(job: LlmJob) -> None:
    """Refuse jobs that would take too long, or too much memory, before the step is built."""
    parallel, replicas = job.parallel, job.replicas
    alike, devices = parallel.alike(job.servers.gpus), parallel.pipeline * replicas
    if devices > _MOST_DEVICES:
        enough = parallel.pipeline * alike <= _MOST_DEVICES
        if enough and parallel.data % alike:
            mend = f"let data be a multiple of {alike}, so that {alike} ranks stand for all"
        else:
            mend = "set simulate to representatives" if enough else "lower pipeline, or expert"
        raise PenstockError(
            f"{devices:,} devices cannot be simulated one by one, at most {_MOST_DEVICES} can: {mend}.",
            code="too-large",
        )
    passes = 2 * parallel.microbatches
    items = passes * parallel.chunks * replicas * 2
    if parallel.expert > 1:
        flows = parallel.expert - 1 if in_pairs(job) else 3
        items += passes * job.model.layers * replicas * 2 * (1 + flows)
    if items > _MOST_ITEMS:
        raise PenstockError(
            f"A step has about {items:,} tasks and flows, more than {_MOST_ITEMS:,}: take fewer microbatches or layers"
            + (", or set all_to_all to detail ports." if parallel.expert > 1 and in_pairs(job) else "."),
            code="too-large",
        )


class _StepBuilder:
    """Device numbers go stage by stage, and within a stage by data rank."""

    def __init__(self, job: LlmJob) -> None:
        parallel = job.parallel
        self.job, self.costs, self.replicas = job, Costs(job), job.replicas
        self.seats = [job.seat(stage, rank) for stage in range(parallel.pipeline) for rank in range(self.replicas)]
        self.names = [f"s{stage}.d{rank}" for stage in range(parallel.pipeline) for rank in range(self.replicas)]
        # The last simulated ranks see the first ones as those that would follow.
        beyond = range(parallel.expert if self.replicas < parallel.data else 0)
        self.images = [
            Image(stage * self.replicas + rank, job.seat(stage, self.replicas + rank).server)
            for stage in range(parallel.pipeline)
            for rank in beyond
        ]
        self.workload = DeviceWorkload(len(self.seats) + len(self.images))
        where = [seat.server for seat in self.seats]
        self.experts = Experts(job, self.workload, self.costs.to_experts, where) if parallel.expert > 1 else None
        self._entries: dict[tuple[bool, int, int, int], Item] = {}
        """First and last task of a pass, by direction, chunk of the model, microbatch and device."""
        self._exits: dict[tuple[bool, int, int, int], Item] = {}
        self._opens: dict[tuple[int, int], Item] = {}
        """The first task of a step that needs a layer's parameters, by layer and device."""
        self._closes: dict[tuple[int, int], Item] = {}
        """The task after which a layer's gradients are there."""

    def devices(self, stage: int) -> range:
        """The devices of a pipeline stage."""
        return range(stage * self.replicas, (stage + 1) * self.replicas)

    def add_stage(self, stage: int) -> None:
        """All passes of a stage in their order, on all its devices."""
        parallel = self.job.parallel
        order = order_of(stage, parallel.pipeline, parallel.microbatches, parallel.interleave)
        last: list[Item] = []
        for work in order:
            entries, exits = self._add_pass(stage, work)
            for before, after in zip(last, entries, strict=bool(last)):
                self.workload.wait(before, after)
            last = exits
        first = order[0]
        for device, item in zip(self.devices(stage), last, strict=True):
            chunk = stage + first.chunk * parallel.pipeline
            self.workload.wait(item, self._entries[True, chunk, first.microbatch, device], 1)

    def join_stages(self) -> None:
        """Connect the chunks: each sends to the next, forward and then backward."""
        parallel, size = self.job.parallel, self.costs.between_stages
        for (forward, chunk, microbatch, device), item in self._exits.items():
            following = chunk + 1 if forward else chunk - 1
            if not 0 <= following < parallel.chunks:
                continue
            rank = device % self.replicas
            target = following % parallel.pipeline * self.replicas + rank
            layers = parallel.layers_of(chunk, self.job.model)
            way = "forward" if forward else "backward"
            kind = f"pp-interleaved-{way}" if parallel.interleave > 1 else f"pp-{way}"
            name = f"pp-{way} {chunk}.{microbatch} {device}->{target}"
            layer = layers[-1] if forward else layers[0]
            flow = self.workload.flow(name, kind, (device, target), size, [item], name, microbatch, layer)
            self.workload.wait(flow, self._entries[forward, following, microbatch, target])

    def buckets(self) -> list[Bucket]:
        """Layers whose gradients are sent together, in the model's order."""
        parallel, model, out = self.job.parallel, self.job.model, []
        for chunk in range(parallel.chunks):
            stage = chunk % parallel.pipeline
            devices = self.devices(stage)
            for layers in self._cut(parallel.layers_of(chunk, model)):
                ready = [self._closes[layers[0], device] for device in devices]
                awaited = [self._opens[layers[0], device] for device in devices]
                out.append(Bucket(layers, devices, ready, awaited, self._images(stage)))
        return out

    def _images(self, stage: int) -> range:
        each = len(self.images) // self.job.parallel.pipeline
        return range(len(self.seats) + stage * each, len(self.seats) + (stage + 1) * each)

    def _add_pass(self, stage: int, work: Work) -> tuple[list[Item], list[Item]]:
        """The first and the last task on each of a stage's devices."""
        add = self._add_expert_pass if self.experts else self._add_dense_pass
        entries, exits = add(stage, work)
        chunk = stage + work.chunk * self.job.parallel.pipeline
        for device, entry, end in zip(self.devices(stage), entries, exits, strict=True):
            self._entries[work.forward, chunk, work.microbatch, device] = entry
            self._exits[work.forward, chunk, work.microbatch, device] = end
        return entries, exits

    def _add_dense_pass(self, stage: int, work: Work) -> tuple[list[Item], list[Item]]:
        """One task; or one for every bucket where parameters are waited for or gradients are sent."""
        parallel, costs = self.job.parallel, self.costs
        chunk = stage + work.chunk * parallel.pipeline
        layers = parallel.layers_of(chunk, self.job.model)
        apart = work.microbatch == (0 if work.forward else parallel.microbatches - 1)
        pieces = self._cut(layers) if apart else [layers]
        entries, exits = [], []
        for device in self.devices(stage):
            last: list[Item] = []
            for piece in pieces if work.forward else pieces[::-1]:
                seconds = len(piece) * (costs.attention(work.forward) + costs.feed_forward(work.forward))
                seconds += costs.head(work.forward) * (piece[-1] == self.job.model.layers - 1)
                item = self._task(work, f"{piece.start}", seconds, device, last)
                if not last:
                    entries.append(item)
                if apart:
                    (self._opens if work.forward else self._closes)[piece.start, device] = item
                last = [item]
            exits += last
        return entries, exits

    def _add_expert_pass(self, stage: int, work: Work) -> tuple[list[Item], list[Item]]:
        """Attention, tokens to their experts, the experts, tokens back, for every layer; backward in reverse."""
        layers = self.job.parallel.layers_of(stage + work.chunk * self.job.parallel.pipeline, self.job.model)
        costs, devices = self.costs, self.devices(stage)
        head = costs.head(work.forward) * (layers[-1] == self.job.model.layers - 1)
        waits: list[list[Item]] = [[] for _ in devices]
        entries: list[Item] = []
        if not work.forward:
            entries = [self._task(work, f"{layers[-1]} head", head, device, []) for device in devices]
            waits = [[item] for item in entries]
        for layer in layers if work.forward else layers[::-1]:
            if work.forward:
                items = self._attention(work, layer, stage, waits)
                entries = entries or items
                waits = self._experts(work, layer, stage, items)
            else:
                waits = self._experts(work, layer, stage, [each[-1] for each in waits])
                items = self._attention(work, layer, stage, waits)
                waits = [[item] for item in items]
        if work.forward:
            waits = [
                [self._task(work, f"{layers[-1]} head", head, device, before)]
                for device, before in zip(devices, waits, strict=True)
            ]
        return entries, [each[-1] for each in waits]

    def _attention(self, work: Work, layer: int, stage: int, waits: list[list[Item]]) -> list[Item]:
        items = [
            self._task(work, f"{layer} attention", self.costs.attention(work.forward), device, before)
            for device, before in zip(self.devices(stage), waits, strict=True)
        ]
        found = self._opens if work.forward else self._closes
        if work.microbatch == (0 if work.forward else self.job.parallel.microbatches - 1):
            found.update({(layer, device): item for device, item in zip(self.devices(stage), items, strict=True)})
        return items

    def _experts(self, work: Work, layer: int, stage: int, ready: list[Item]) -> list[list[Item]]:
        """Tokens to the experts, through them, and back; returns what each device then waits for."""
        assert self.experts is not None, "only for models with experts"
        load, size = self.experts.load(layer), self.job.parallel.expert
        seconds = self.costs.feed_forward(work.forward)
        way = "forward" if work.forward else "backward"
        out: list[list[Item]] = []
        for first in range(0, self.replicas, size):
            devices = self.devices(stage)[first : first + size]
            items, routing = ready[first : first + size], self.experts.routing(layer, devices)
            for name, sizes in (("to", routing), ("back", routing.back)):
                marks = Marks(f"ep-{way} {layer}.{work.microbatch} {first} {name}", f"ep-{way}", work.microbatch, layer)
                waits = self.experts.exchange(sizes, devices, items, marks)
                if name == "to":
                    items = [
                        self._task(work, f"{layer} experts", seconds * float(load[rank]), device, before)
                        for rank, (device, before) in enumerate(zip(devices, waits, strict=True))
                    ]
            out += waits
        return out

    def _task(self, work: Work, what: str, seconds: float, device: int, after: list[Item]) -> Item:
        kind = "forward" if work.forward else "backward"
        name = f"{self.names[device]} {kind} {work.microbatch} layer {what}"
        return self.workload.task(name, kind, seconds, device, after)

    def _cut(self, layers: range) -> list[range]:
        """The layers, cut into gradient buckets."""
        size = max(1, self.job.reduction.bucket_layers)
        return [layers[start : start + size] for start in range(0, len(layers), size)]
