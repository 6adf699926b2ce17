"""The forward pass on one worker: bins as soon as their inputs are here, and rows to their readers."""

from contextlib import nullcontext

import torch

from penstock.train.whole.norms import LayerNorms
from penstock.train.whole.shared.state import StepState
from penstock.train.whole.shared.tasks import BinTask


class ForwardPass:
    """Computes every bin once, in an order that depends on what arrives; no sum does."""

    def __init__(self, state: StepState) -> None:
        self._state, self._plan, self._tasks = state, state.plan, state.step.tasks
        layers = range(self._plan.layers)
        self._left = [dict.fromkeys(layer) for layer in self._tasks]
        self._done: list[set[int]] = [set() for _ in layers]
        self._missing = [set(range(len(level.received))) for level in self._plan.levels]
        self._unsent = [set(range(len(level.sent))) for level in self._plan.levels]
        self._unmeasured = [number for number in layers if state.step.normalises[number]]

    def run(self) -> None:
        """Until all bins are computed, and all that others read of them is sent."""
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
        """Of the bins whose inputs are here one of the lowest layer; in a layer those that others read come first."""
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
        """Whether all that a layer reads is here."""
        return number == 0 or not (self._left[number - 1] or self._missing[number])

    def _measure(self, number: int) -> None:
        """The statistics of a layer that is normalised, of all workers' rows."""
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
        """What is complete of the level that a layer gives."""
        if self._left[number] and not self._state.intra:
            return
        for place in sorted(self._unsent[number + 1]):
            if self._plan.levels[number + 1].sent[place].computed_by <= self._done[number]:
                self._state.send_rows(number + 1, place)
                self._unsent[number + 1].discard(place)
