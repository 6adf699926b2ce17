"""Completion times of coflows as a table on disk."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError


def check_table(path: Path) -> None:
    """Refuse a table that cannot be written as it is named."""
    if path.suffix != ".csv":
        raise PenstockError(
            f"--out-coflows {path}: the table is written as CSV; give a name that ends in .csv.", code="invalid-value"
        )
    if not path.parent.is_dir():
        raise PenstockError(
            f"--out-coflows {path}: there is no folder {path.parent}; make it first.", code="file-not-found"
        )


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a line for each row, under the names of its fields."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
