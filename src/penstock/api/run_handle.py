"""`ps.Run`: a trained run to look at, to evaluate and to predict with."""

import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, overload

import torch

from penstock.api.arguments import opened
from penstock.errors import PenstockError, nearest
from penstock.export.exported import export_session
from penstock.formatting import html_table
from penstock.graph.folder import Graph
from penstock.graph.object_folders import local_copy
from penstock.nn.adapter import Adapted
from penstock.report import write_report
from penstock.report.comparison import different_settings
from penstock.report.run_folder import read_metrics
from penstock.train.job import Job, job_defaults
from penstock.train.run_files.run_folder import METRICS, RunFolder
from penstock.train.session import Session
from penstock.train.use import embeddings, no_such_split, open_session, predictions, predictions_of
from penstock.train.user_functions import NOTHING_GIVEN, GivenFunctions

# A run's epochs as a table.

_SHOWN = 30
"""The most epochs that a printed table shows: the first and the last of them."""


class History(Sequence[dict[str, Any]]):
    """One row for each epoch, counted from 1: `train_loss`, `val_loss` and validation metrics, each None where it was
    not computed. `history["val_accuracy"]` is a column."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows
        self.columns = list(dict.fromkeys(name for row in rows for name in row))

    @classmethod
    def read(cls, path: Path) -> "History":
        """The history in a run's metrics.jsonl."""
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
        """The history as a pandas.DataFrame."""
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


# Two runs side by side.

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


class Run:
    """A run that has ended, or a run folder looked at later.

    `model`, `evaluate`, `predict` and `embed` use the best model that the run has kept.
    """

    def __init__(
        self,
        folder: RunFolder,
        graph: Graph | None = None,
        module: torch.nn.Module | None = None,
        trust_module: bool = False,
        given: GivenFunctions = NOTHING_GIVEN,
    ) -> None:
        self._folder, self._graph, self._module, self._trusted = folder, graph, module, trust_module
        self._given = given

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        graph: Any = None,
        module: torch.nn.Module | None = None,
        trust_module: bool = False,
        metrics: Sequence[Callable[..., Any]] | None = None,
    ) -> "Run":
        """The run in a folder.

        `graph` is needed where the run's own was only in memory, and `module` where it trained a module object.
        `metrics` are functions to evaluate it by, besides those of its job.
        """
        if not isinstance(path, str | os.PathLike):
            raise PenstockError(f"A run is opened by its folder, not by {path!r}: give its path.", code="wrong-type")
        given = GivenFunctions(metrics=None if metrics is None else tuple(metrics))
        folder = RunFolder.open(local_copy(path))
        return cls(folder, None if graph is None else opened(graph), module, trust_module, given)

    @property
    def path(self) -> Path:
        """The run's folder, which has its checkpoints, logs and report."""
        return self._folder.path

    @property
    def state(self) -> str:
        """finished, stopped-early, interrupted, failed or running."""
        return str(self._folder.facts["state"])

    @property
    def message(self) -> str:
        """Why the run is not finished; empty where it is."""
        return str(self._folder.facts.get("message", ""))

    @property
    def job(self) -> Job:
        """All settings of the run, defaults included."""
        return self._folder.job()

    @property
    def result(self) -> dict[str, Any]:
        """The result as `penstock train --json` prints it."""
        result: dict[str, Any] = self._folder.facts.get("result", {})
        return result

    @property
    def val(self) -> dict[str, float]:
        """The best model's validation metrics."""
        return dict(self.result.get("val", {}))

    @property
    def test(self) -> dict[str, float]:
        """The best model's test metrics."""
        return dict(self.result.get("test", {}))

    @property
    def history(self) -> History:
        """A row for each epoch: training and validation loss, validation metrics, learning rate, seconds."""
        return History.read(self.path / METRICS)

    def model(self) -> torch.nn.Module:
        """The best model, in evaluation mode: one of `ps.nn`, or a copy of the module that was trained."""
        model = self.session().model
        return (model.module if isinstance(model, Adapted) else model).eval()

    def evaluate(self, split: str = "test", graph: Any = None) -> dict[str, float]:
        """Metrics of a split (train, val or test), by exact inference; `graph` stands for the run's own."""
        if not isinstance(split, str):
            raise PenstockError(f"split is {split!r}: give one name, such as 'test'.", code="wrong-type")
        found = self.session(graph).evaluate([split])
        if split not in found:
            raise no_such_split(split)
        return found[split]

    def predict(self, ids: Any = None, *, split: str | None = None, graph: Any = None) -> Any:
        """A pyarrow.Table of predictions, with `to_pandas()`: for vertices with some ids, of a split, or all.

        Ids are those of your tables, or vertex numbers where the graph has none; a run on links takes pairs of them.
        """
        if ids is not None and split is not None:
            raise PenstockError("Give ids or a split to predict, not both.", code="conflicting-options")
        session = self.session(graph)
        return predictions(session, split) if ids is None else predictions_of(session, ids)

    def embed(self, node_type: str | None = None, graph: Any = None) -> torch.Tensor:
        """Embeddings [vertices, width]: the model's representation of each vertex before its last layer, in graph
        order.
        """
        return embeddings(self.session(graph), node_type)[1].cpu()

    def export(
        self, folder: str | os.PathLike[str], to: str = "torch", *, force: bool = False, graph: Any = None
    ) -> Path:
        """Write the best model as a PyTorch module that needs no Penstock; `to` is torch, program or onnx."""
        export_session(self.session(graph), Path(folder), to, force)
        return Path(folder)

    def compare(self, other: "Run | str | os.PathLike[str]") -> RunComparison:
        """Settings in which two runs differ, and their figures side by side; `other` is a run or its folder."""
        if not isinstance(other, Run | str | os.PathLike):
            raise PenstockError(
                f"A {type(other).__name__} cannot be compared with a run: give another run, or its folder.",
                code="wrong-type",
            )
        second = other if isinstance(other, Run) else Run.open(other)
        sides = [(str(run.path), run.job.model_dump(mode="json"), run.val, run.test) for run in (self, second)]
        return RunComparison(*sides)

    def session(self, graph: Any = None, module: torch.nn.Module | None = None, trust_module: bool = False) -> Session:
        """The run's best model with its task and its graph; the arguments replace what the run was opened with."""
        given = self._graph if graph is None else opened(graph)
        used = deepcopy(self._module) if module is None else module
        return open_session(self.path, given, used, trust_module=self._trusted or trust_module, given=self._given)

    @property
    def page(self) -> Path | None:
        """The path of report.html, or None where the run has none."""
        page = self.path / "report.html"
        return page if page.exists() else None

    def report(self) -> Path:
        """Write report.html again and return its path."""
        return write_report(self.path, job_defaults())

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state}, test={self.test})"

    def _repr_html_(self) -> str:
        scores = [
            (f"{split} {name}", value) for split in ("val", "test") for name, value in getattr(self, split).items()
        ]
        facts = [
            (name, self.result[name]) for name in ("epochs", "best_epoch", "seconds", "device") if name in self.result
        ]
        return html_table(f"Run {self.path}", [("state", self.state), *facts, *scores])
