"""The epochs of metrics.jsonl as a table, metrics.csv: for spreadsheets and for people."""

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.graph.atomic import write_whole
from penstock.graph.input_files import open_lines
from penstock.graph.output_files import open_text, writing


def append_epoch(table: Path, log: Path, record: dict[str, Any], advice: str) -> None:
    """One more row. Where the epoch has a column that the table lacks, the table is written anew from the log."""
    row = _row(record)
    header = _header(table)
    if not set(row) <= set(header):
        write_table_of(table, log)
        return
    with writing(table, advice), open_text(table, "a") as file:
        csv.DictWriter(file, header, lineterminator="\n").writerow(row)


def write_table_of(table: Path, log: Path) -> None:
    """The table of all epochs in a log; without any there is none."""
    rows = [_row(record) for record in _epochs(log)]
    if not rows:
        table.unlink(missing_ok=True)
        return
    longest = max(rows, key=len)
    names = list(dict.fromkeys([*longest, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(table, text.getvalue())


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """Epochs count from 1, as people count them."""
    row: dict[str, Any] = {"epoch": record["epoch"] + 1} if "epoch" in record else {}
    for name in ("step", "loss", "val_loss", "val", "lr", "seconds"):
        value = record.get(name)
        if name == "val" and isinstance(value, dict):
            row |= {f"val_{metric}": number for metric, number in value.items()}
        elif value is not None:
            row[name] = value
    return row


def _epochs(log: Path) -> Iterable[dict[str, Any]]:
    if not log.exists():
        return
    with open_lines(log) as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                # A process that was killed may have left half a line.
                continue
            if record.get("kind") == "epoch":
                yield record


def _header(table: Path) -> list[str]:
    if not table.exists():
        return []
    with open_lines(table) as file:
        return next(csv.reader(file), [])
