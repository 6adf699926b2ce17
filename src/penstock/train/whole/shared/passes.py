"""One worker's forward pass, loss and backward pass: each bin is computed as soon as its inputs have arrived."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from penstock.graph.arrays import Array
from penstock.nn.aggregation import AggregatedRows
from penstock.train.whole.levels import LevelGradients, RowsInPlace, backward_from
from penstock.train.whole.norms import LayerNorms
from penstock.train.whole.shared.cut_plan import CutLevel
from penstock.train.whole.shared.interfaces import Tag
from penstock.train.whole.shared.shared_step import BinTask, LossRows, Places
from penstock.train.whole.shared.state import StepState, as_array

# The forward pass on one worker: bins are computed as soon as their inputs have arrived, and rows sent to readers.


class ForwardPass:
    """Computes every bin once. The order depends on what arrives, but no sum depends on the order."""

    def __init__(self, state: StepState) -> None:
        self._state, self._plan, self._tasks = state, state.plan, state.step.tasks
        layers = range(self._plan.layers)
        self._left = [dict.fromkeys(layer) for layer in self._tasks]
        self._done: list[set[int]] = [set() for _ in layers]
        self._missing = [set(range(len(level.received))) for level in self._plan.levels]
        self._unsent = [set(range(len(level.sent))) for level in self._plan.levels]
        self._unmeasured = [number for number in layers if state.step.normalises[number]]

    def run(self) -> None:
        """Compute all bins, and send all rows that others read."""
        while any(self._left) or self._unmeasured:
            self._receive()
            if self._unmeasured and self._has_all(self._unmeasured[0]):
                self._measure(self._unmeasured.pop(0))
                continue
            task = self._next()
            if task is None:
                self._state.wait()
                continue
            self._compute(task)
            self._send(task.layer)

    def _receive(self) -> None:
        for level, missing in enumerate(self._missing):
            for place in sorted(missing):
                if self._state.receive_rows(level, place):
                    missing.discard(place)

    def _next(self) -> BinTask | None:
        """The next bin whose inputs have arrived: of the lowest layer, and within it first those that others read."""
        return next((task for layer in self._left for task in layer if self._is_ready(task)), None)

    def _is_ready(self, task: BinTask) -> bool:
        number = task.layer
        if number in self._unmeasured:
            return False
        if number == 0:
            return True
        if not self._state.inter or self._state.step.normalises[number]:
            return self._has_all(number)
        return task.below <= self._done[number - 1] and not task.halo & self._missing[number]

    def _has_all(self, number: int) -> bool:
        """Whether all inputs of a layer have arrived."""
        return number == 0 or not (self._left[number - 1] or self._missing[number])

    def _measure(self, number: int) -> None:
        """Compute the statistics of a normalised layer over all workers' rows."""
        state = self._state
        norms = state.norms[number] = LayerNorms(state.workers.add, state.step.norms)
        with norms.measuring(), torch.no_grad():
            for task in self._tasks[number]:
                state.passes.compute(number, task, state.fetch(number, task))

    def _compute(self, task: BinTask) -> None:
        state, number = self._state, task.layer
        norms, level = state.norms[number], state.levels[number + 1]
        assert level is not None
        retain = state.step.decision.retain and norms is None
        with nullcontext() if norms is None else norms.applying():
            x = state.fetch(number, task)
            state.kept[task] = state.passes.forward(number, task, x, level, retain)
        del self._left[number][task]
        self._done[number].add(task.place)

    def _send(self, number: int) -> None:
        """Send what is complete of the level that a layer computes."""
        if self._left[number] and not self._state.intra:
            return
        for place in sorted(self._unsent[number + 1]):
            if self._plan.levels[number + 1].sent[place].computed_by <= self._done[number]:
                self._state.send_rows(number + 1, place)
                self._unsent[number + 1].discard(place)


# The loss on one worker: it receives other workers' rows that it reads, and returns their gradients.


class LossPass:
    """The loss: forward after all bins are computed, backward before any of them is."""

    def __init__(self, state: StepState, rows: LossRows) -> None:
        self._state, self._rows, self._rank = state, rows, state.workers.rank
        self._answers: list[Places] = [{} for _ in state.plan.levels]
        """By level, this worker's rows that losses may read."""
        self._joined: Places = {}
        """The model's outputs for them."""
        self._read: Places = {}
        """Those that this worker's loss reads, in the order of its seeds."""
        self._loss: Tensor | None = None

    def forward(self) -> float:
        """This worker's part of the mean over all examples."""
        self._join()
        for rank, places in self._elsewhere(self._rows.sent):
            self._post(rank, False, [self._joined[kind].detach()[some] for kind, some in places.items()])
        received = self._receive(False, self._rows.read)
        if not self._rows.num_examples:
            return 0.0
        session, batch = self._state.session, self._rows.batch
        for kind, rows in batch.seeds.items():
            found = self._joined[kind].detach() if self._rows.only_own else self._gathered(kind, len(rows), received)
            self._read[kind] = found.requires_grad_()
        with session.precision():
            self._loss = session.task.loss(session.of_model(self._read), batch) * self._rows.share
        return float(self._loss.detach())

    def backward(self, gradients: list[LevelGradients]) -> None:
        """Add gradients of the levels' rows and of the head in the order of ranks, others' losses included."""
        if self._loss is not None:
            self._loss.backward()  # type: ignore[no-untyped-call]
        for rank, places in self._elsewhere(self._rows.read):
            self._post(rank, True, [_gradients(self._read[kind])[some] for kind, some in places.items()])
        received = self._receive(True, self._rows.sent)
        sums = self._sums(received)
        if sums:
            backward_from([self._joined[kind] for kind in sums], list(sums.values()))
        for number, level in enumerate(self._answers):
            for kind, rows in level.items():
                if rows.grad is not None:
                    gradients[number].add(kind, self._state.step.seeds[number - 1][kind], rows.grad)

    def _sums(self, received: dict[int, Places]) -> Places:
        """The gradients of this worker's rows, summed over all losses that read them."""
        if self._rows.only_own:
            return {kind: _gradients(rows) for kind, rows in self._read.items()}
        sums: Places = {}
        for rank, places in enumerate(self._rows.sent):
            for kind, some in places.items():
                rows = self._joined[kind]
                if kind not in sums:
                    sums[kind] = torch.zeros_like(rows)
                if rank == self._rank:
                    found = _gradients(self._read[kind])[self._rows.read[rank][kind]]
                else:
                    found = received[rank][kind].to(rows)
                sums[kind].index_add_(0, some, found)
        return sums

    def _join(self) -> None:
        state, layers = self._state, self._state.plan.layers
        session, model = state.session, state.session.model
        read = range(1, layers + 1) if model.needs_all_outputs else [layers]
        for number in read:
            level = state.levels[number]
            assert level is not None
            for kind, places in state.step.seeds[number - 1].items():
                if len(places):
                    self._answers[number][kind] = level.read(kind, places).detach().requires_grad_()
        outputs: list[Any] = [self._answers[number] for number in read]
        if not outputs[-1]:
            return
        with session.precision():
            joined: Any = model.join([session.of_model(each) for each in outputs])  # type: ignore[operator]
            self._joined = dict(joined) if isinstance(joined, dict) else {next(iter(outputs[-1])): joined}

    def _gathered(self, kind: str, count: int, received: dict[int, Places]) -> Tensor:
        """The rows of a type's seeds, this worker's own and those of others."""
        parts = {rank: rows[kind] for rank, rows in received.items() if kind in rows}
        if kind in self._rows.sent[self._rank]:
            parts[self._rank] = self._joined[kind].detach()[self._rows.sent[self._rank][kind]]
        first = parts.get(self._rank, next(iter(parts.values())))
        table = first.new_empty(count, first.shape[1])
        for rank, rows in parts.items():
            table[self._rows.read[rank][kind]] = rows.to(table)
        return table

    def _elsewhere(self, places: list[Places]) -> list[tuple[int, Places]]:
        return [(rank, each) for rank, each in enumerate(places) if each and rank != self._rank]

    def _post(self, rank: int, backward: bool, rows: list[Tensor]) -> None:
        self._state.workers.mail.post(rank, self._tag(backward), [as_array(each) for each in rows])

    def _receive(self, backward: bool, places: list[Places]) -> dict[int, Places]:
        """What other workers send, by rank."""
        found: dict[int, Places] = {}
        missing = dict(self._elsewhere(places))
        while missing:
            for rank, kinds in list(missing.items()):
                rows = self._state.workers.mail.take(rank, self._tag(backward))
                if rows is not None:
                    tensors = [torch.from_numpy(each).to(self._state.step.device) for each in rows]
                    found[rank] = dict(zip(kinds, tensors, strict=True))
                    del missing[rank]
            if missing:
                self._state.wait()
        return found

    def _tag(self, backward: bool) -> Tag:
        """The tag of the loss's messages: no bin reads the last level, so the level identifies them."""
        return Tag(backward, self._state.plan.layers, 0)


def _gradients(rows: Tensor) -> Tensor:
    return torch.zeros_like(rows) if rows.grad is None else rows.grad


# Gradients of a sent group, which return in one or several messages.


class ArrivingGroup:
    """What has arrived of one group's gradients; rows for which none comes have zeros."""

    def __init__(self, level: CutLevel, place: int) -> None:
        self._counts = {kind: level.sent[place].count(kind) for kind in level.sent[place].rows}
        self._missing = {
            number
            for number, each in enumerate(level.awaited)
            for parts in each.parts.values()
            for group, _ in parts
            if group == place
        }
        self.values: dict[str, Array] = {}
        """By node type; types that no loss depends on are left out."""

    def take(self, kind: str, rows: Array, values: Array) -> None:
        """Store gradients of some rows of the group."""
        if kind not in self.values:
            self.values[kind] = np.zeros((self._counts[kind], values.shape[1]), values.dtype)
        self.values[kind][rows] = values

    def is_complete(self, message: int) -> bool:
        """Whether all gradients have arrived, given that one more of the level's messages has."""
        self._missing.discard(message)
        return not self._missing


# Gradients are added in a fixed order, whenever they arrive, so that sums have the same bits in every run.


class Contribution(LevelGradients):
    """What one bin adds to the gradients of the level below and to those of the parameters, kept
    until it may be added.
    """

    def __init__(self) -> None:
        self._added: list[tuple[str, Tensor | None, Tensor]] = []
        self._in_place: list[tuple[str, RowsInPlace, AggregatedRows]] = []
        self._parameters: list[tuple[Parameter, Tensor]] = []

    def add(self, node_type: str, rows: Tensor | None, gradients: Tensor) -> None:
        """Keep gradients of some rows."""
        self._added.append((node_type, rows, gradients))

    def take(self, work: Any, x: Mapping[str, Any]) -> None:
        """Keep the gradients that the backward pass of a bin (`BinTask`) has computed for what it read."""
        if work.in_place is None:
            super().take(work, x)
        else:
            self._in_place += [(name, work.in_place, read) for name, read in x.items()]

    def take_from(self, parameters: Iterable[Parameter]) -> None:
        """Keep the gradients of parameters, and clear them there."""
        for parameter in parameters:
            if parameter.grad is not None:
                self._parameters.append((parameter, parameter.grad))
                parameter.grad = None

    def apply(self, below: LevelGradients, sums: dict[Parameter, Tensor]) -> None:
        """Add everything that was kept."""
        for node_type, rows, gradients in self._added:
            below.add(node_type, rows, gradients)
        for node_type, lists, read in self._in_place:
            lists.add_gradients(node_type, read, below)
        for parameter, gradient in self._parameters:
            known = sums.get(parameter)
            sums[parameter] = gradient if known is None else known.add_(gradient)


class OrderedLayer:
    """The contributions of one layer's bins, applied in the plan's backward order."""

    def __init__(self, order: Sequence[int], below: LevelGradients, sums: dict[Parameter, Tensor]) -> None:
        self._left, self._below, self._sums = list(reversed(order)), below, sums
        self._added: set[int] = set()
        self._waiting: dict[int, Contribution] = {}

    def give(self, place: int, contribution: Contribution) -> None:
        """Register a bin's contribution; it is added as soon as those of all bins before it are."""
        self._waiting[place] = contribution
        while self._left and self._left[-1] in self._waiting:
            added = self._left.pop()
            self._waiting.pop(added).apply(self._below, self._sums)
            self._added.add(added)

    def has(self, place: int) -> bool:
        """Whether a bin's contribution has been added."""
        return place in self._added


# The backward pass on one worker: bins as soon as the gradients of their rows have arrived, in fixed order of sums.

_WORTH = 1 << 14
"""Layers with at least this many values have their gradients summed separately; smaller ones would cost more as
messages of their own.
"""


class BackwardPass:
    """Gradients of a row are added in this order: the loss's, those of this worker's bins, and the readers' by rank."""

    def __init__(self, state: StepState, gradients: list[LevelGradients], sums: dict[Parameter, Tensor]) -> None:
        self._state, self._plan, self._tasks, self._gradients = state, state.plan, state.step.tasks, gradients
        layers = range(self._plan.layers)
        self._sums = sums
        self._parameters = [each for each in state.session.learned.parameters() if each.requires_grad]
        orders = self._plan.backward_order
        self._applied = [OrderedLayer(orders[number], gradients[number], sums) for number in layers]
        # In the order in which their contributions are added.
        self._left = [dict.fromkeys(self._tasks[number][place] for place in orders[number]) for number in layers]
        self._missing = [set(range(len(level.sent))) for level in self._plan.levels]
        self._unsent = [set(range(len(level.returned))) for level in self._plan.levels]
        self._awaited = [set(range(len(level.awaited))) for level in self._plan.levels]
        self._arriving = {
            (number, place): ArrivingGroup(level, place)
            for number, level in enumerate(self._plan.levels)
            for place in range(len(level.sent))
        }
        self._added: set[tuple[BinTask, int]] = set()
        self._unstarted = [*reversed(range(1, self._plan.layers))]
        """Layers whose parameters' gradients are not complete; those of the first layer are left to the step."""
        self._unsummed = [number for number in reversed(layers) if state.norms[number] is not None]

    def run(self) -> None:
        """Compute the gradients of all parameters and inputs, and send all that others need."""
        while any(self._left) or self._unsummed or any(self._missing):
            self._start_sums()
            self._receive()
            if self._unsummed and self._has_all(self._unsummed[0]):
                self._sum(self._unsummed.pop(0))
                continue
            task = self._next()
            if task is not None:
                self._compute(task)
                self._send(task.layer)
            elif any(self._left) or self._unsummed or any(self._missing):
                self._state.wait()
        self._start_sums()

    def _receive(self) -> None:
        for level, awaited in enumerate(self._awaited):
            for place in sorted(awaited):
                found = self._state.receive_gradients(level, place)
                if found is not None:
                    awaited.discard(place)
                    self._take(level, place, found)

    def _take(self, level: int, place: int, found: dict[str, Array]) -> None:
        for kind, parts in self._plan.levels[level].awaited[place].parts.items():
            values, first = found[kind], 0
            for group, rows in parts:
                drawn = self._state.drawn_of_sent(level, group, kind)
                there = rows if drawn is None else rows[drawn[rows]]
                arriving = self._arriving[level, group]
                if values.size:
                    arriving.take(kind, there, values[first : first + len(there)])
                    first += len(there)
                if arriving.is_complete(place):
                    self._missing[level].discard(group)

    def _next(self) -> BinTask | None:
        return next((task for layer in reversed(self._left) for task in layer if self._is_ready(task)), None)

    def _is_ready(self, task: BinTask) -> bool:
        number = task.layer
        if number in self._unsummed:
            return False
        if not self._state.inter or self._state.norms[number] is not None:
            return self._has_all(number)
        if number + 1 < self._plan.layers and not all(self._applied[number + 1].has(place) for place in task.above):
            return False
        return self._missing[number + 1].isdisjoint(task.readers)

    def _has_all(self, number: int) -> bool:
        """Whether all gradients of the rows that a layer computes have arrived."""
        above = number + 1 == self._plan.layers or not self._left[number + 1]
        return above and not self._missing[number + 1]

    def _sum(self, number: int) -> None:
        """Compute the sums for gradients through the statistics of a normalised layer, over all workers' rows."""
        state, norms = self._state, self._state.norms[number]
        assert norms is not None
        for task in self._tasks[number]:
            self._add_received(task)
        with norms.summing():
            for task in self._tasks[number]:
                state.passes.backward(
                    number,
                    task,
                    None,
                    state.fetch,
                    self._gradients[number + 1],
                    Contribution(),
                )
        # Parameters after the normalisation have gradients from this pass, and will get them again: clear them.
        Contribution().take_from(self._parameters)

    def _compute(self, task: BinTask) -> None:
        state, number = self._state, task.layer
        norms, contribution = state.norms[number], Contribution()
        self._add_received(task)
        with nullcontext() if norms is None else norms.applying():
            known = state.kept.pop(task, None)
            state.passes.backward(number, task, known, state.fetch, self._gradients[number + 1], contribution)
        contribution.take_from(self._parameters)
        self._applied[number].give(task.place, contribution)
        del self._left[number][task]
        if not self._left[number]:
            # Every bin above has read this layer's rows and added to their gradients, so both can be freed.
            state.levels[number + 1] = None
            self._gradients[number + 1].clear()

    def _start_sums(self) -> None:
        """Sum the gradients of complete layers over all workers while earlier layers are computed, last layer first.

        A layer follows the sums of its own normalisation, also on workers without rows of it.
        """
        while self._unstarted and not self._left[self._unstarted[0]] and self._unstarted[0] not in self._unsummed:
            parameters = self._state.step.layer_parameters[self._unstarted.pop(0)]
            if sum(each.numel() for each in parameters) < _WORTH:
                continue
            for each in parameters:
                each.grad = self._sums.pop(each, None)
            self._state.workers.start_sum(parameters)
            for each in parameters:
                if each.grad is not None:
                    self._sums[each], each.grad = each.grad, None

    def _add_received(self, task: BinTask) -> None:
        level = task.layer + 1
        for place in task.readers:
            if place not in self._missing[level] and (task, place) not in self._added:
                self._added.add((task, place))
                self._state.add_gradients(task, place, self._arriving[level, place].values, self._gradients[level])

    def _send(self, number: int) -> None:
        """Send gradients of halo rows to which all bins that read them have added."""
        for place in sorted(self._unsent[number]):
            if self._applied[number].has(self._plan.levels[number].returned[place].bin):
                self._state.send_gradients(number, place, self._gradients[number])
                self._unsent[number].discard(place)
