"""Two runs side by side."""

from typing import Any

from penstock.notebook_html import html_table
from penstock.report.comparison import different_settings

Side = tuple[str, dict[str, Any], dict[str, float], dict[str, float]]
"""A run's name, its job's fields, and its validation and test metrics."""


class RunComparison:
    """`settings` are the fields of the jobs that differ, `scores` the metrics of either, each as a pair."""

    def __init__(self, first: Side, second: Side) -> None:
        self.names = first[0], second[0]
        self.settings = {name: tuple(values) for name, values in different_settings([first[1], second[1]]).items()}
        self.scores: dict[str, tuple[float | None, float | None]] = {}
        for split, own, other in (("val", first[2], second[2]), ("test", first[3], second[3])):
            for name in dict.fromkeys((*own, *other)):
                self.scores[f"{split} {name}"] = own.get(name), other.get(name)

    def _rows(self) -> list[tuple[str, Any, Any]]:
        return [(name, *pair) for name, pair in (*self.settings.items(), *self.scores.items())]

    def __repr__(self) -> str:
        rows = [("", *self.names), *self._rows()]
        cells = [[f"{each:.4f}" if isinstance(each, float) else str(each) for each in row] for row in rows]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        return "\n".join(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells
        )

    def _repr_html_(self) -> str:
        return html_table("Two runs", self._rows(), ("", *self.names))
