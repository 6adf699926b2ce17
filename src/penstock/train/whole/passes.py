"""One layer's bins forward and backward."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock.nn.constant_input import constant_input
from penstock.nn.drop import dropping
from penstock.train.session import Session
from penstock.train.whole.levels import KeptLevel, LevelGradients
from penstock.train.whole.prepared import PreparedBin
from penstock.train.whole.step_progress import StepProgress

Fetch = Callable[[int, PreparedBin], dict[str, Any]]
"""What a bin of a layer reads, as leaves of autograd's graph: rows, or `AggregatedRows`."""


@dataclass(eq=False)
class BinPass:
    """A bin that was computed with gradients: its inputs and outputs."""

    x: dict[str, Any]
    out: dict[str, Tensor]


@dataclass(eq=False)
class LayerPasses:
    """Computes bins of the model's layers for one step, whose dropout is drawn with `key`."""

    session: Session
    key: Any
    constant: dict[Any, Any] | None
    """What layers made of inputs that never change, kept from step to step; None: they do change."""
    progress: StepProgress | None = None
    calls: list[int] = field(default_factory=lambda: [0])
    """How often dropout is called before each layer, as far as is known."""

    def compute(self, number: int, work: PreparedBin, x: dict[str, Any]) -> dict[str, Tensor]:
        """The bin's rows by node type."""
        session, model = self.session, self.session.model
        typed = not session.graph.is_homogeneous
        with dropping(self.key, work.row_names) as stream, session.precision():
            stream.calls = self.calls[number]
            rows: Any = x if typed else next(iter(x.values()))
            if number == 0:
                with self._constant(x):
                    rows = model.layer(0, work.block, model.prepare(rows))  # type: ignore[operator]
            else:
                rows = model.layer(number, work.block, rows)  # type: ignore[operator]
            if len(self.calls) == number + 1:
                self.calls.append(stream.calls)
        return dict(rows) if typed else {next(iter(work.rows)): rows}

    def _constant(self, x: dict[str, Any]) -> AbstractContextManager[None]:
        if self.constant is None:
            return nullcontext()
        learned = self.session.inputs.tables
        return constant_input(self.constant, [rows for name, rows in x.items() if name not in learned])

    def forward(
        self, number: int, work: PreparedBin, x: dict[str, Any], level: KeptLevel, with_gradients: bool
    ) -> BinPass | None:
        """Compute a bin and hand its rows to the level; returns what a backward pass needs, where it is to be kept."""
        with torch.set_grad_enabled(with_gradients):
            out = self.compute(number, work, x)
        for name, rows in out.items():
            level.write(name, work.rows[name], rows)
        if self.progress is not None:
            self.progress.bin_done("forward", number)
        return BinPass(x, out) if with_gradients else None

    def backward(
        self,
        number: int,
        work: PreparedBin,
        known: BinPass | None,
        fetch: Fetch,
        above: LevelGradients,
        below: LevelGradients,
    ) -> None:
        """Gradients of a bin's rows to those of what it read, and to the parameters."""
        if known is None:
            x = fetch(number, work)
            with torch.enable_grad():
                known = BinPass(x, self.compute(number, work, x))
        given = {name: above.of(name, work.rows[name]) for name in known.out}
        pairs = [
            (rows, given[name]) for name, rows in known.out.items() if given[name] is not None and rows.requires_grad
        ]
        if pairs:
            tensors, gradients = zip(*pairs, strict=True)
            scaled = [each.to(rows.dtype) for rows, each in zip(tensors, gradients, strict=True)]
            torch.autograd.backward(tensors, scaled)
        below.take(work, known.x)
        if self.progress is not None:
            self.progress.bin_done("backward", number)
