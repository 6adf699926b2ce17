"""Features that stay in their table: a batch says which rows it reads, and a layer reads them there."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.errors import PenstockError


@dataclass(eq=False)
class TableRows:
    """table[ids] without the copy: `table` [vertices, width] on a device, `ids` int32 or int64 [rows].

    `SAGELayer` aggregates straight from the table; whoever needs a matrix makes one. Ids behind the batch's own, where
    there is room for more, are read as well (by rows that nobody reads): they must be rows of the table. `direct`: the
    block's lists name rows of the table, as its sampler gave neighbours no rows of their own, and `ids` are the
    destinations'.
    """

    table: Tensor
    ids: Tensor
    direct: bool = False

    def materialise(self, dtype: torch.dtype | None = None) -> Tensor:
        """[rows, width], in the table's type or another."""
        from penstock.nn.device.gather import copy_rows

        if self.direct:
            raise PenstockError(
                "The batch's neighbours have no rows of their own, so they cannot be copied to a matrix.",
                code="unsupported-combination",
            )
        return copy_rows(self.table, self.ids, dtype or self.table.dtype)

    def __getitem__(self, rows: slice) -> "TableRows":
        return TableRows(self.table, self.ids[rows])

    def __len__(self) -> int:
        return len(self.ids)

    def dim(self) -> int:
        """2: the rows form a matrix."""
        return 2

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix that the rows would form."""
        return len(self.ids), self.table.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the table."""
        return self.table.dtype

    @property
    def device(self) -> torch.device:
        """The device that computes with the rows."""
        return self.table.device

    @property
    def requires_grad(self) -> bool:
        """False: features are not learned."""
        return False


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The type in which a layer with this weight computes: autocast's where that is on."""
    kind = weight.device.type
    # Traced tensors have no device; their autocast is that of the host.
    kind = "cpu" if kind == "meta" else kind
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
