"""The backward pass on one worker: bins as soon as the gradients of their rows are here, in fixed sums."""

from contextlib import nullcontext

from torch import Tensor
from torch.nn import Parameter

from penstock.graph.arrays import Array
from penstock.train.whole.levels import LevelGradients
from penstock.train.whole.shared.arriving import ArrivingGroup
from penstock.train.whole.shared.gradient_order import Contribution, OrderedLayer
from penstock.train.whole.shared.state import StepState
from penstock.train.whole.shared.tasks import BinTask

_WORTH = 1 << 14
"""Numbers of a layer from which on its gradients are summed by themselves; fewer cost more as messages of their own."""


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
        """Until the gradients of all parameters and inputs are known, and all that others need is sent."""
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
        """Whether all gradients of the rows that a layer gives are here."""
        above = number + 1 == self._plan.layers or not self._left[number + 1]
        return above and not self._missing[number + 1]

    def _sum(self, number: int) -> None:
        """What goes back through the statistics of a normalised layer, of all workers' rows."""
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
        # Parameters behind the normalisation have had gradients, which come again.
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
            # Every bin above has read the rows that this layer gave, and added to their gradients.
            state.levels[number + 1] = None
            self._gradients[number + 1].clear()

    def _start_sums(self) -> None:
        """Sum the gradients of complete layers over all workers while earlier layers are computed, last layer first.

        A layer comes behind the sums of its own normalisation, on workers without rows of it, too.
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
        """Gradients of halo rows that all bins which read them have given."""
        for place in sorted(self._unsent[number]):
            if self._applied[number].has(self._plan.levels[number].returned[place].bin):
                self._state.send_gradients(number, place, self._gradients[number])
                self._unsent[number].discard(place)
