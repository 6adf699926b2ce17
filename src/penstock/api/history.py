"""A run's epochs as a table."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from penstock.errors import PenstockError, nearest
from penstock.notebook_html import html_table
from penstock.report.metrics_log import read_metrics

_SHOWN = 30
"""Epochs that a printed table has at most: the first and the last of them."""


class History(Sequence[dict[str, Any]]):
    """One row for each epoch, counted from 1: `train_loss`, `val_loss` and validation metrics, each None where it was
    not computed. `history["val_accuracy"]` is a column."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows
        self.columns = list(dict.fromkeys(name for row in rows for name in row))

    @classmethod
    def read(cls, path: Path) -> "History":
        """From a run's metrics.jsonl."""
        rows = []
        for epoch in read_metrics(path).epochs:
            scores = {f"val_{name}": value for name, value in epoch.val.items()}
            losses = {"train_loss": epoch.loss, "val_loss": epoch.val_loss}
            rows.append({"epoch": epoch.epoch, **losses, **scores, "lr": epoch.lr, "seconds": epoch.seconds})
        return cls(rows)

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        if not isinstance(key, str):
            return self._rows[key]
        if key not in self.columns:
            raise PenstockError(f"The history has no column {key!r}{nearest(key, self.columns)}", code="unknown-name")
        return [row.get(key) for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def to_pandas(self) -> Any:
        """As a pandas.DataFrame."""
        try:
            import pandas
        except ImportError:
            raise PenstockError("pandas is not installed: `pip install pandas`.", code="not-installed") from None
        return pandas.DataFrame(self._rows, columns=self.columns)

    def __repr__(self) -> str:
        rows = [self.columns, *(list(map(_short, row)) for row in self._shown())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)

    def _repr_html_(self) -> str:
        return html_table(f"{len(self)} epochs", self._shown(), self.columns)

    def _shown(self) -> list[list[Any]]:
        rows = [[row.get(name) for name in self.columns] for row in self._rows]
        if len(rows) <= _SHOWN:
            return rows
        return [*rows[: _SHOWN // 2], ["..."] * len(self.columns), *rows[-_SHOWN // 2 :]]


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
