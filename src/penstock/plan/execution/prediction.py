"""The seconds of a batch in a sequence of many, by simulation; and what limits them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.cost.model import CostModel
from penstock.graph.arrays import Array
from penstock.plan.execution.batch_operators import (
    CORES,
    DOWN,
    GPU,
    UNITS,
    UP,
    BatchOperator,
    BatchOperators,
    OperatorLane,
    batch_operators,
    lane_network,
)
from penstock.plan.execution.choice import USUAL_DEPTHS, BatchKind, ExecutionChoice, PipelineDepths
from penstock.plan.execution.first_layer import WayWork
from penstock.simulate.simulation import simulate
from penstock.simulate.workload_builder import Item, WorkloadBuilder

_BATCHES = 24
"""The least number of simulated batches, of which the middle third counts: before it the pipeline fills, after it it
drains.
"""


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a choice."""

    seconds: float
    """Seconds per batch, in the middle of a run."""
    use: dict[str, float]
    """Share of the time that each resource is busy."""
    operators: int = 0
    """The number of operators of a batch."""

    @property
    def limit(self) -> str:
        """The resource that is busy for the largest share of the time."""
        return max(self.use, key=lambda name: self.use[name])


def predict(
    model: CostModel,
    kind: BatchKind,
    choice: ExecutionChoice,
    way: WayWork,
    depths: PipelineDepths = USUAL_DEPTHS,
) -> Prediction:
    """The seconds of a batch under a choice, on the machine that the model was fitted on."""
    operators, cores = batch_operators(model, kind, choice, way), float(model.machine.cores)
    batches = _Batches(operators, choice, depths, int(cores))
    load, size = batches.builder.build(), len(batches.made)
    repeats = max(6, -(-_BATCHES // size))
    timeline = simulate(load, lane_network(batches.lanes, cores), batches.placement(), repeats, "fair")
    ended = timeline.ends[:, load.tasks + batches.made[-1][-1].last.number]
    third = repeats // 3
    seconds = float(ended[2 * third - 1] - ended[third - 1]) / (third * size)
    capacity = {CORES: cores, UP: 1.0, DOWN: 1.0, GPU: 1.0}
    use = {name: operators.use(name) / (capacity[name] * seconds) for name in capacity}
    count = sum(map(len, operators.stages))
    return Prediction(seconds, {name: share for name, share in use.items() if share > 0}, count)


class _Stage(NamedTuple):
    """The first and the last operator of a batch's stage."""

    first: Item
    last: Item


class _Batches:
    """Some batches as flows over lanes, which are repeated: a group, or one for each thread that draws."""

    def __init__(self, operators: BatchOperators, choice: ExecutionChoice, depths: PipelineDepths, cores: int) -> None:
        self.builder, self._operators = WorkloadBuilder("batches"), operators
        self._grouped = choice.groups > 1
        drawing = cores if self._grouped else choice.sample_threads
        self._threads = drawing if choice.sampled_by == "cpu" else 1
        self._places: dict[OperatorLane, Item] = {}
        self._start = self.builder.task("start", "lane", 0.0)
        size = choice.groups if self._grouped else self._threads
        self.made = [[self._sampled(number)] for number in range(size)]
        self._go_on()
        self._wait_for_lanes()
        self._wait_for_room(depths)

    @property
    def lanes(self) -> list[OperatorLane]:
        """All lanes that are used."""
        return list(self._places)

    def placement(self) -> Array:
        """The machine of every task: the start is on the first."""
        return np.arange(len(self._places) + 1, dtype=np.int32)

    def _sampled(self, number: int) -> _Stage:
        """Drawing by one of the threads, each of which is a lane."""
        lane = f"{self._operators.sample[0].lane.name} {number % self._threads}"
        drawn = [each._replace(lane=each.lane._replace(name=lane)) for each in self._operators.sample]
        return self._stage(number, drawn, [])

    def _go_on(self) -> None:
        """Add the other stages of every batch; a group is trained on when all of it is drawn."""
        drawn = [stages[0].last for stages in self.made]
        for number, stages in enumerate(self.made):
            after = drawn if self._grouped and number == 0 else [stages[0].last]
            for operators in filter(None, self._operators.stages[1:]):
                stages.append(self._stage(number, operators, after))
                after = [stages[-1].last]

    def _stage(self, number: int, operators: Sequence[BatchOperator], after: Sequence[Item]) -> _Stage:
        """Add operators one after the other, beginning when all of `after` have ended."""
        flows = list[Item]()
        for place, each in enumerate(operators):
            if each.lane not in self._places:
                self._places[each.lane] = self.builder.task(each.lane.title, "lane", 0.0)
            size = each.seconds * (each.lane.cores if CORES in each.lane.resources else 1.0) * UNITS
            item = self.builder.flow(
                self._start, self._places[each.lane], size, each.name, follows_itself=False, waits_for_source=False,
                awaited_by_target=False, name=f"{each.lane.name} {place} of batch {number}: {each.name}",
            )  # fmt: skip
            for before in flows[-1:] or after:
                self.builder.wait(before, item)
            flows.append(item)
        return _Stage(flows[0], flows[-1])

    def _wait_for_lanes(self) -> None:
        """A stage, or a drawing thread, begins a batch when it has ended the last one."""
        for number, stages in enumerate(self.made):
            for place, stage in enumerate(stages):
                before, lag = self._ago(number, self._threads if place == 0 else 1)
                self.builder.wait(self.made[before][place].last, stage.first, lag)

    def _wait_for_room(self, depths: PipelineDepths) -> None:
        """A stage begins a batch when the next stage has taken enough earlier ones.

        A group begins to be drawn when its first batch is needed.
        """
        rooms = [depth for depth, stage in zip(depths, self._operators.stages, strict=False) if stage]
        for number, stages in enumerate(self.made):
            for place, room in enumerate(rooms):
                ahead = room + 2
                if place == 0:
                    ahead += number if self._grouped else self._threads - 1
                before, lag = self._ago(number, ahead)
                self.builder.wait(self.made[before][place + 1].last, stages[place].first, lag)

    def _ago(self, number: int, batches: int) -> tuple[int, int]:
        """The batch so many before one: its number among the repeated ones, and how many repetitions ago that was."""
        repeats, place = divmod(number - batches, len(self.made))
        return place, -repeats
