"""Does a model trained here reach its published figure?

Trains the published model of every labelled set in a folder of archives, a run a seed, and compares the mean of the
test metric with the published figure. Sets without a split of their own get another one with every seed, as do the ones
with ten.
Run: python benchmarks/accuracy.py [--data ../shared/data] [--only cora,tolokers:sage] [--seeds 10] [--json]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock.api import train
from penstock.graph.convert import load
from penstock.graph.graph import Graph, NodeSet
from penstock.train.data import with_reverses

DATA = Path(__file__).parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Recipe:
    """A set and the job that trains the published model on it. Figures are percentages."""

    data: str
    fields: dict[str, Any]
    metric: str = "accuracy"
    published: float | None = None
    plain: float | None = None
    """What a plain untuned two-layer GCN (R-GCN where edges are typed) reaches on the same file."""
    splits: bool = False
    """Whether seed k takes split k."""
    joined: bool = False
    """Whether validation vertices are trained on too, as those who published did: the last epoch's model counts."""

    @property
    def name(self) -> str:
        """set:model."""
        return f"{self.data}:{self.fields['model']}"


WHOLE = {"batch_size": 1 << 20, "fanouts": [-1, -1]}
"""Every training vertex with its whole neighbourhood in one step: what the small sets' figures were made with."""

KIPF = {
    **WHOLE,
    "model": "gcn",
    "hidden": 16,
    "input_dropout": 0.5,
    "lr": 0.01,
    "weight_decay": 5e-4,
    "epochs": 200,
    "scale_features": "rows",
}
"""Kipf and Welling, Semi-supervised classification with graph convolutional networks."""

RECIPES = [
    Recipe("cora", KIPF, published=81.5, plain=81.7),
    Recipe("citeseer", KIPF, published=70.3, plain=71.0),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the archives")
    parser.add_argument("--only", default="", help="sets, or set:model, with commas between them")
    parser.add_argument("--seeds", type=int, default=10, help="runs a recipe")
    parser.add_argument("--json", action="store_true", help="one object a recipe instead of the table")
    args = parser.parse_args()
    rows = []
    for recipe in chosen(args.only):
        rows.append(measure(recipe, args.data, args.seeds))
        print(json.dumps(rows[-1]), file=sys.stdout if args.json else sys.stderr, flush=True)
    if not args.json:
        Console(width=140).print(table(rows))


def chosen(only: str) -> list[Recipe]:
    """The recipes asked for, in their order."""
    asked = {name for name in only.split(",") if name}
    if unknown := asked - {name for recipe in RECIPES for name in (recipe.name, recipe.data)}:
        sys.exit(f"There is no recipe {min(unknown)!r}: choose among {', '.join(recipe.name for recipe in RECIPES)}.")
    return [recipe for recipe in RECIPES if not asked or asked & {recipe.name, recipe.data}]


def measure(recipe: Recipe, data: Path, seeds: int) -> dict[str, Any]:
    """Mean and standard deviation of the test metric over seeds 0, 1, ...; seconds are those of one run."""
    start = time.perf_counter()
    scores = [round(100 * score(recipe, data, seed), 3) for seed in range(seeds)]
    mean = statistics.fmean(scores)
    return {
        "set": recipe.data,
        "model": recipe.fields["model"],
        "metric": recipe.metric,
        "mean": round(mean, 2),
        "std": round(statistics.stdev(scores), 2) if seeds > 1 else None,
        "published": recipe.published,
        "plain": recipe.plain,
        "difference": None if recipe.published is None else round(mean - recipe.published, 2),
        "seconds": round((time.perf_counter() - start) / seeds, 1),
        "scores": scores,
    }


def score(recipe: Recipe, data: Path, seed: int) -> float:
    """The test metric of one run."""
    archive = data / f"{recipe.data}.npz"
    fields = {"metric": recipe.metric, **recipe.fields, "seed": seed}
    if recipe.splits:
        fields["split_number"] = seed
    with tempfile.TemporaryDirectory() as folder:
        graph = joined(archive, fields) if recipe.joined else str(archive)
        return train(graph, run=str(Path(folder) / "run"), **fields).test[recipe.metric]


def joined(archive: Path, fields: dict[str, Any]) -> Graph:
    """The graph with its validation vertices among those trained on."""
    graph = load(str(archive))
    nodes = {name: _with_joined_splits(each) for name, each in graph.nodes.items()}
    graph = Graph(nodes, graph.edges, graph.name, graph.path, graph.origin)
    return with_reverses(graph) if fields.get("reverse_edges") else graph


def _with_joined_splits(nodes: NodeSet) -> NodeSet:
    splits = {name: np.asarray(rows) for name, rows in nodes.splits.items()}
    if "val" in splits:
        splits["train"] = np.union1d(splits["train"], splits.pop("val"))
    return NodeSet(nodes.count, nodes.fields, splits, nodes.ids, nodes.categories)


def table(rows: list[dict[str, Any]]) -> Table:
    """One line a recipe."""
    shown = Table("set", "model", "metric", "ours", "published", "plain GCN", "difference", "seconds a run")
    for row in rows:
        spread = "" if row["std"] is None else f" ± {row['std']:.2f}"
        shown.add_row(
            row["set"],
            row["model"],
            row["metric"],
            f"{row['mean']:.2f}{spread}",
            _figure(row["published"], ".1f"),
            _figure(row["plain"], ".1f"),
            _figure(row["difference"], "+.2f"),
            f"{row['seconds']:.1f}",
        )
    return shown


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    main()
