"""The forward and backward pass of one step: every layer's bins, the loss, and the bins in reverse."""

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from penstock.sampling.key import BatchKey
from penstock.train.session import Session
from penstock.train.whole.levels import KeptLevel, LevelGradients
from penstock.train.whole.norms import LayerNorms
from penstock.train.whole.passes import BinPass, LayerPasses
from penstock.train.whole.prepared import PreparedStep
from penstock.train.whole.step_progress import StepProgress


class StepPasses:
    """The forward and backward pass of one step, layer by layer in bins."""

    def __init__(self, session: Session, step: PreparedStep, key: BatchKey, dropout: Any = None) -> None:
        """`dropout`: the key of dropout as a number on a device, for steps that are captured."""
        self._session, self._step, self._plan = session, step, step.plan
        self._examples = step.examples.of(key)
        progress = StepProgress(session.progress, session.job, key, [len(layer) for layer in step.bins])
        drawn = key.purpose("dropout") if dropout is None else dropout
        self._passes = LayerPasses(session, drawn, step.constant, progress)
        self._levels: list[KeptLevel | None] = [None] * (self._plan.layers + 1)
        self._retained: list[list[BinPass | None]] = []
        self._norms: list[LayerNorms | None] = [None] * self._plan.layers
        self._inputs = step.gradients(0)
        self._answers: list[dict[str, Tensor]] = []

    def forward(self) -> Tensor:
        """The loss of the step's examples."""
        for number in range(self._plan.layers):
            self._levels[number + 1] = self._forward_layer(number, self._step.decision.retain)
            if self._step.decision.recompute_levels and not self._session.model.needs_all_outputs and number:
                self._levels[number] = None
        return self._loss()

    def backward(self, loss: Tensor) -> None:
        """Gradients of the loss in the parameters, and of learnable rows."""
        loss.backward()  # type: ignore[no-untyped-call]
        above = self._step.gradients(self._plan.layers)
        self._add_answers(self._plan.layers, above)
        self._levels[-1] = None
        for number in reversed(range(self._plan.layers)):
            below = self._inputs if number == 0 else self._step.gradients(number)
            self._add_answers(number, below)
            self._backward_layer(number, above, below)
            # Earlier layers read earlier levels.
            self._levels[number] = None
            above = below

    def learned_rows(self) -> list[Tensor]:
        """Learnable rows with their gradients, to be clipped with the others."""
        return list(self._learnable().values())

    def learn(self) -> None:
        """Push the gradients of learnable rows."""
        for name, rows in self._learnable().items():
            vertices = self._plan.order[name][: self._plan.counts[0][name]]
            assert rows.grad is not None
            self._session.inputs.tables[name].push(vertices, rows.grad.float().cpu().numpy())

    def _learnable(self) -> dict[str, Tensor]:
        found = {}
        for name in self._session.inputs.tables:
            gradients = self._inputs.of(name, slice(None))
            if gradients is not None:
                rows = torch.empty_like(gradients)
                rows.grad = gradients
                found[name] = rows
        return found

    def _forward_layer(self, number: int, retain: bool, again: bool = False) -> KeptLevel:
        level = self._step.level(number + 1)
        bins, norms = self._step.bins[number], self._norms[number]
        if norms is None and self._step.normalises[number] and not (retain and len(bins) == 1):
            norms = self._norms[number] = LayerNorms(self._step.add)
            with norms.measuring(), torch.no_grad():
                for work in bins:
                    self._passes.compute(number, work, self._fetch(number, work))
        retain = retain and not (norms is not None)
        with nullcontext() if norms is None else norms.applying():
            kept = [self._passes.forward(number, work, self._fetch(number, work), level, retain) for work in bins]
        if not again:
            self._retained.append(kept)
        return level

    def _backward_layer(self, number: int, above: LevelGradients, below: LevelGradients) -> None:
        self._require_level(number)
        norms, bins = self._norms[number], self._step.bins[number]
        if norms is not None:
            with norms.summing():
                for work in bins:
                    none = LevelGradients({}, self._session.inputs.device)
                    self._passes.backward(number, work, None, self._fetch, above, none)
        with nullcontext() if norms is None else norms.applying():
            for place in reversed(range(len(bins))):
                known, self._retained[number][place] = self._retained[number][place], None
                self._passes.backward(number, bins[place], known, self._fetch, above, below)

    def _require_level(self, number: int) -> None:
        """Compute what a layer reads again, where it was not kept."""
        first = number
        while first and self._levels[first] is None:
            first -= 1
        for layer in range(first, number):
            self._levels[layer + 1] = self._forward_layer(layer, retain=False, again=True)
            if layer > first:
                self._levels[layer] = None

    def _fetch(self, number: int, work: Any) -> dict[str, Any]:
        level = self._levels[number]
        assert number == 0 or level is not None
        return self._step.fetch(work, level)

    def _loss(self) -> Tensor:
        session, model = self._session, cast(Any, self._session.model)
        read = range(1, self._plan.layers + 1) if model.needs_all_outputs else [self._plan.layers]
        self._answers = [{} for _ in range(self._plan.layers + 1)]
        for number in read:
            level = self._levels[number]
            assert level is not None
            for name, places in self._examples.places.items():
                self._answers[number][name] = level.read(name, places).detach().requires_grad_()
        outputs: list[Any] = [self._answers[number] for number in read]
        if session.graph.is_homogeneous:
            outputs = [next(iter(each.values())) for each in outputs]
        with session.precision():
            return session.task.loss(model.join(outputs), self._examples.batch)

    def _add_answers(self, number: int, gradients: LevelGradients) -> None:
        """What the loss takes of a level by itself."""
        for name, rows in self._answers[number].items():
            if rows.grad is not None:
                gradients.add(name, self._examples.places[name], rows.grad)
                # The loss refers to these rows until the step is over.
                rows.grad = None
