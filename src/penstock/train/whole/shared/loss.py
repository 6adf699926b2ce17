"""The loss on one worker: rows of other workers that it reads are received, and their gradients go back."""

from typing import Any

import torch
from torch import Tensor

from penstock.train.whole.levels import LevelGradients
from penstock.train.whole.shared.interfaces import Tag
from penstock.train.whole.shared.loss_rows import LossRows, Places
from penstock.train.whole.shared.state import StepState, as_array


class LossPass:
    """Forward once all bins are computed, and backward before any of them is."""

    def __init__(self, state: StepState, rows: LossRows) -> None:
        self._state, self._rows, self._rank = state, rows, state.workers.rank
        self._answers: list[Places] = [{} for _ in state.plan.levels]
        """By level, this worker's rows that losses may read."""
        self._joined: Places = {}
        """The model's outputs of them,"""
        self._read: Places = {}
        """and those that this worker's loss reads, in the order of its seeds."""
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
        out: Any = self._read
        if session.graph.is_homogeneous:
            (out,) = self._read.values()
        with session.precision():
            self._loss = session.task.loss(out, batch) * self._rows.share
        return float(self._loss.detach())

    def backward(self, gradients: list[LevelGradients]) -> None:
        """Gradients of the levels' rows, of whatever is learned behind them, and of what others' losses read here.

        They are added in the order of ranks.
        """
        if self._loss is not None:
            self._loss.backward()  # type: ignore[no-untyped-call]
        for rank, places in self._elsewhere(self._rows.read):
            self._post(rank, True, [_gradients(self._read[kind])[some] for kind, some in places.items()])
        received = self._receive(True, self._rows.sent)
        sums = self._sums(received)
        if sums:
            torch.autograd.backward([self._joined[kind] for kind in sums], list(sums.values()))
        for number, level in enumerate(self._answers):
            for kind, rows in level.items():
                if rows.grad is not None:
                    gradients[number].add(kind, self._state.step.seeds[number - 1][kind], rows.grad)

    def _sums(self, received: dict[int, Places]) -> Places:
        """The gradients of this worker's rows, of all losses that read them."""
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
            if session.graph.is_homogeneous:
                ((kind, _),) = outputs[-1].items()
                self._joined = {kind: model.join([next(iter(each.values())) for each in outputs])}  # type: ignore[operator]
            else:
                self._joined = dict(model.join(outputs))  # type: ignore[operator]

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
        """No bin reads the last level, so that its messages are the loss's."""
        return Tag(backward, self._state.plan.layers, 0)


def _gradients(rows: Tensor) -> Tensor:
    return torch.zeros_like(rows) if rows.grad is None else rows.grad
