"""Learnable rows in a device's memory: a step reads and updates them there, without a copy on the host.

The formulas are those of `store.embedding`, in the same type. Recorded steps round as the host does; of steps that are
launched one by one the last bits may differ. A checkpoint holds the same arrays wherever the rows lie.
"""

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.store.embedding import (
    ADAGRAD_EPSILON,
    BETA_1,
    BETA_2,
    EPSILON,
    EmbeddingTable,
    correction,
    moves_every_row,
    stored_arrays,
)
from penstock.traced import launches


class DeviceEmbeddingTable:
    """The rows and moments of an `EmbeddingTable` without decay, on a device."""

    def __init__(self, table: EmbeddingTable, device: torch.device) -> None:
        self.name, self.optimiser, self.rate, self.steps = table.name, table.optimiser, table.rate, table.steps
        self._table = [torch.from_numpy(each).to(device) for each in (table.rows, *table.moments)]

    @property
    def moves_every_row(self) -> bool:
        """Whether a step also updates rows that its batch has not read."""
        return moves_every_row(self.optimiser, 0.0)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        self.rate = rate

    @property
    def rows(self) -> Array:
        """A copy of all rows, on the host."""
        return np.asarray(self._table[0].cpu().numpy())

    @property
    def size(self) -> int:
        """The number of learnable values."""
        return self._table[0].numel()

    @property
    def bytes(self) -> int:
        """Bytes of rows and moments."""
        return sum(4 * each.numel() for each in self._table)

    def rows_on(self, ids: Array | Tensor) -> Tensor:
        """Some rows, a view that the next step may change."""
        rows = self._table[0]
        return rows.detach() if self._is_all(ids) else rows[self._places(ids)]

    def push(self, ids: Array, gradients: Array) -> None:
        """`learn`, with gradients on the host."""
        self.learn(ids, torch.from_numpy(gradients).to(self._table[0].device))

    def pull(self, ids: Array) -> Array:
        """A copy of some rows, on the host."""
        return np.asarray(self._table[0][self._places(ids)].cpu().numpy())

    def learn(self, ids: Array | Tensor, gradients: Tensor) -> None:
        """One optimiser step on the rows `ids`, all different."""
        self.steps += 1
        gradients = gradients.float()
        if self._is_all(ids):
            self._step(self._table, gradients)
            return
        places = self._places(ids)
        if self.moves_every_row:
            every = torch.zeros_like(self._table[0])
            self._step(self._table, every.index_copy_(0, places, gradients))
            return
        some = [each[places] for each in self._table]
        self._step(some, gradients)
        for each, new in zip(self._table, some, strict=True):
            each.index_copy_(0, places, new)

    def step(self, ids: Tensor, gradients: Tensor, rate: Tensor, idle: Tensor) -> None:
        """Launch an optimiser step on the rows `ids` (int32), all different; those past the table's end do not count.

        `rate` is one number on the device (see `rates`); where `idle` there is true, no row changes. The host does not
        wait, and counts the step when it knows that it was made.
        """
        rows, order, alone = self._table[0], None, 0
        if self.moves_every_row:
            alone = len(rows)
            every = torch.arange(alone, dtype=torch.int32, device=ids.device)
            ids, order = torch.sort(torch.cat([torch.where(idle, alone, every), ids]), stable=True)
        if launches(ids, order, gradients, rows=len(ids), of=rows):
            from penstock.store.device.kernels import launch_row_steps

            launch_row_steps(self._table, ids, order, None, gradients, rate, alone)

    @property
    def on_device(self) -> list[Tensor]:
        """The rows, then their moments, on the device: what captured steps read and change."""
        return self._table

    def rates(self, steps: int) -> Array:
        """The learning rates of so many steps from the next one on, float32."""
        if self.optimiser == "adagrad":
            return np.full(steps, self.rate, np.float32)
        return np.array([self.rate * correction(self.steps + 1 + step) for step in range(steps)], np.float32)

    def state(self) -> dict[str, Array | int]:
        """Everything a checkpoint must hold, in the form of an `EmbeddingTable`."""
        rows, *moments = (np.asarray(each.cpu().numpy()) for each in self._table)
        return {"steps": self.steps, "rows": rows, **{f"moment{i}": moment for i, moment in enumerate(moments)}}

    def restore(self, state: dict[str, Array | int]) -> None:
        """Load the rows, moments and step count of a stored state."""
        shape = tuple(self._table[0].shape)
        for own, stored in zip(self._table, stored_arrays(self.name, state, len(self._table) - 1, shape), strict=True):
            own.copy_(torch.from_numpy(stored))
        self.steps = int(state["steps"])

    def _step(self, table: list[Tensor], gradients: Tensor) -> None:
        """Update rows and their moments in place."""
        rows = table[0]
        if self.optimiser == "adagrad":
            table[1].addcmul_(gradients, gradients)
            rows.addcdiv_(gradients, table[1].sqrt().add_(ADAGRAD_EPSILON), value=-self.rate)
            return
        first, second = table[1:]
        first.lerp_(gradients, 1 - BETA_1)
        second.mul_(BETA_2).addcmul_(gradients, gradients, value=1 - BETA_2)
        rows.addcdiv_(first, second.sqrt().add_(EPSILON), value=-self.rate * correction(self.steps))

    def _is_all(self, ids: Array | Tensor) -> bool:
        """Whether these are all rows in order, so that nothing has to be gathered."""
        return len(ids) == len(self._table[0]) and bool((ids[1:] > ids[:-1]).all())

    def _places(self, ids: Array | Tensor) -> Tensor:
        if isinstance(ids, Tensor):
            return ids.to(self._table[0].device, torch.int64)
        return torch.from_numpy(np.ascontiguousarray(ids, np.int64)).to(self._table[0].device)
