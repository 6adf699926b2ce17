"""Which explanation is in force for which batch, and the weights that explanations are made from.

Version j is made from the weights after step j * `every` and is in force from the batch of step j * `every` + `delay`
on, on every worker alike. It is a function of those weights, so a checkpoint keeps weights: those of every version that
a batch to come may need. A worker that goes on from a checkpoint, or from another worker's state, explains them again
and comes to the same masks.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.sampling.explanation import Explanation

Weights = dict[str, torch.Tensor]


class ExplanationSchedule:
    """Batches ask for their explanation and wait for it; the training thread hands in weights."""

    def __init__(self, every: int, delay: int, explain: Callable[[int, Weights], None]) -> None:
        """`explain(version, weights)` is called when an explanation is wanted, and answers with `give` or `fail`."""
        self._every, self._delay, self._explain = every, delay, explain
        self._change = threading.Condition()
        self._weights: dict[int, Weights] = {}
        self._found: dict[int, Explanation] = {}
        self._newest: Explanation | None = None
        self._failure: PenstockError | None = None
        self._open = False
        self.waited_s = 0.0
        """Seconds that batches have waited for an explanation that was late."""

    def version_at(self, step: int) -> int:
        """The version in force for the batch of a step, counted from 0; 0: none yet."""
        return max(0, (step - self._delay) // self._every)

    def start(self, step: int) -> None:
        """Training goes on with the batch of a step: explain what it needs and what is not explained yet."""
        with self._change:
            self._open, self._failure = True, None
            self._forget_before(self.version_at(step))
            wanted = {version: each for version, each in self._weights.items() if version not in self._found}
        for version, weights in sorted(wanted.items()):
            self._explain(version, weights)

    def stop(self) -> None:
        """Training pauses or ends: batches that wait for an explanation are let go with an error."""
        with self._change:
            self._open = False
            self._change.notify_all()

    def step_done(self, step: int, weights: Callable[[], Weights]) -> None:
        """So many steps are done; where a version is due it is made from `weights()`, which are copied."""
        if step % self._every:
            return
        version, taken = step // self._every, {name: each.detach().clone().cpu() for name, each in weights().items()}
        with self._change:
            self._weights[version] = taken
            self._forget_before(self.version_at(step))
        self._explain(version, taken)

    def give(self, explanation: Explanation) -> None:
        """An explanation is there."""
        with self._change:
            self._found[explanation.version] = self._newest = explanation
            self._change.notify_all()

    def fail(self, error: PenstockError) -> None:
        """No explanation will come: whoever waits hears why."""
        with self._change:
            self._failure = error
            self._change.notify_all()

    def at(self, step: int) -> Explanation | None:
        """What is in force for the batch of a step; None: nothing yet. Waits while training is under way."""
        version = self.version_at(step)
        if not version:
            return None
        began = time.perf_counter()
        with self._change:
            late = version not in self._found
            while version not in self._found:
                if self._failure is not None:
                    raise self._failure
                if not self._open:
                    raise PenstockError("Training has stopped while a batch waited for its explanation.", code="closed")
                self._change.wait()
            if late:
                self.waited_s += time.perf_counter() - began
            return self._found[version]

    def newest(self) -> Explanation | None:
        """The newest explanation that was made."""
        with self._change:
            return self._newest

    def state(self) -> dict[str, Weights]:
        """The weights of all versions that may still be needed."""
        with self._change:
            return {str(version): dict(weights) for version, weights in self._weights.items()}

    def restore(self, state: Any) -> None:
        """Weights from a checkpoint or another worker; what was explained from other weights is forgotten."""
        if not isinstance(state, Mapping) or not all(
            str(version).isdecimal()
            and isinstance(weights, Mapping)
            and all(isinstance(each, torch.Tensor) for each in weights.values())
            for version, weights in state.items()
        ):
            raise PenstockError("The checkpoint does not hold the weights of its explanations.", code="damaged-file")
        restored = {int(version): dict(weights) for version, weights in state.items()}
        with self._change:
            same = {each for each in restored if each in self._weights and _equal(restored[each], self._weights[each])}
            self._found = {version: each for version, each in self._found.items() if version in same}
            self._weights = restored

    def _forget_before(self, version: int) -> None:
        self._weights = {each: kept for each, kept in self._weights.items() if each >= version}
        self._found = {each: kept for each, kept in self._found.items() if each >= version}


def _equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
