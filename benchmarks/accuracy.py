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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from penstock.api import train
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.train.data import open_data
from penstock.train.job import make_job

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
    component: bool = False
    """Whether vertices outside the largest component keep no label, as those who published did."""

    @property
    def name(self) -> str:
        """set:model."""
        return f"{self.data}:{self.fields['model']}"


WHOLE = {"batch_size": 1 << 20, "fanouts": [-1, -1], "inference_mb": 4096, "sample_depth": 1, "gather_depth": 1}
"""Every training vertex with its whole neighbourhood in one step, as the small sets' figures were made. Such a batch is
the whole graph's features: one at a time is enough."""

KIPF = {
    **WHOLE,
    "model": "gcn",
    "hidden": 16,
    "input_dropout": 0.5,
    "lr": 0.01,
    "weight_decay": 5e-4,
    "epochs": 200,
    "evaluate_every": 4,
    "scale_features": "rows",
}
"""Kipf and Welling, Semi-supervised classification with graph convolutional networks."""

SHCHUR = {**WHOLE, "split": "per-class", "hidden": 64, "lr": 0.01, "weight_decay": 5e-4, "evaluate_every": 4}
"""Shchur et al., Pitfalls of graph neural network evaluation: 20 and 30 vertices a class, others for every seed."""

PHOTO = {**SHCHUR, "input_dropout": 0.5, "weight_decay": 1e-3, "epochs": 100, "clip": 1.0}

PLATONOV = {
    **WHOLE,
    "fanouts": [-1] * 5,
    "hidden": 64,
    "norm": "layer",
    "residual": True,
    "dropout": 0.2,
    "lr": 0.005,
    "evaluate_every": 10,
}
"""Platonov et al., A critical look at the evaluation of GNNs under heterophily: five residual layers. Theirs are 512
wide with two more products a layer."""

PLAIN = {**WHOLE, "model": "gcn", "hidden": 64, "lr": 0.01, "evaluate_every": 4, "epochs": 60}
"""For sets without a published figure."""

RECIPES = [
    Recipe("cora", KIPF, published=81.5, plain=81.7),
    Recipe("citeseer", KIPF, published=70.3, plain=71.0),
    Recipe(
        "aifb",
        {
            **WHOLE,
            "model": "rgcn",
            "reverse_edges": True,
            "embedding": 128,
            "hidden": 16,
            "dropout": 0.0,
            "lr": 0.01,
            "epochs": 50,
            "evaluate_every": 0,
        },
        published=95.8,
        plain=93.9,
        joined=True,
    ),
    Recipe(
        "hetero-dblp",
        {**WHOLE, "model": "sage", "reverse_edges": True, "hidden": 64, "lr": 0.005, "epochs": 50, "evaluate_every": 2},
        "macro-f1",
        published=72.0,
    ),
    Recipe("cora-ml", {**KIPF, **SHCHUR, "epochs": 100}, splits=True),
    Recipe("actor", {**PLAIN, "model": "sage", "weight_decay": 5e-4, "evaluate_every": 1, "epochs": 40}, splits=True),
    Recipe("amazon-photo", {**PHOTO, "model": "gcn"}, published=91.2, plain=89.4, splits=True, component=True),
    Recipe("amazon-photo", {**PHOTO, "model": "sage"}, published=91.4, plain=89.4, splits=True, component=True),
    Recipe("minesweeper", {**PLATONOV, "model": "gcn", "epochs": 250}, "roc-auc", published=89.8, splits=True),
    Recipe("minesweeper", {**PLATONOV, "model": "sage", "epochs": 250}, "roc-auc", published=93.5, splits=True),
    Recipe("twitch-engb", PLAIN, "roc-auc", splits=True),
    Recipe("twitch-de", PLAIN, "roc-auc", plain=72.2, splits=True),
    Recipe("tolokers", {**PLATONOV, "model": "gcn", "epochs": 200}, "roc-auc", published=83.6, plain=75.3, splits=True),
    Recipe(
        "tolokers", {**PLATONOV, "model": "sage", "epochs": 200}, "roc-auc", published=82.4, plain=75.3, splits=True
    ),
    Recipe("deezer-hu", {**PLAIN, "embedding": 64, "epochs": 40}, "micro-f1", splits=True),
    Recipe(
        "coauthor-cs",
        {
            **SHCHUR,
            "model": "gcn",
            "scale_features": "rows",
            "input_dropout": 0.5,
            "lr": 0.02,
            "weight_decay": 1e-4,
            "epochs": 60,
        },
        published=91.1,
        plain=91.7,
        splits=True,
    ),
    Recipe(
        "coauthor-cs",
        {**SHCHUR, "model": "sage", "scale_features": "rows", "epochs": 40},
        published=91.3,
        plain=91.7,
        splits=True,
    ),
    Recipe("facebook-pagepage", {**PLAIN, "epochs": 40}, plain=94.6, splits=True),
    Recipe(
        "am-1m",
        {
            "model": "rgcn",
            "reverse_edges": True,
            "fanouts": [10, 10],
            "embedding": 32,
            "hidden": 32,
            "dropout": 0.2,
            "lr": 0.01,
            "epochs": 5,
        },
    ),
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
    fields = {"metric": recipe.metric, **recipe.fields, "graph": str(data / f"{recipe.data}.npz"), "seed": seed}
    if recipe.splits:
        fields["split_number"] = seed
    with tempfile.TemporaryDirectory() as folder:
        job = make_job({**fields, "run": str(Path(folder) / "run")})
        run = train(as_published(recipe, open_data(job)), job=job)
        if run.state == "interrupted":
            sys.exit(f"Interrupted in {recipe.name}, seed {seed}.")
        return run.test[recipe.metric]


def as_published(recipe: Recipe, graph: Graph) -> Graph:
    """The graph with the labels and splits that the figure was made with."""
    nodes = dict(graph.nodes)
    for name, each in nodes.items():
        if recipe.joined and "val" in each.splits:
            train_rows = np.union1d(each.splits["train"], each.splits["val"])
            nodes[name] = replace(each, splits={"train": train_rows, "test": each.splits["test"]})
        if recipe.component:
            labels = np.where(largest_component(graph), each.y, -1)
            nodes[name] = replace(each, fields={**each.fields, "y": labels})
    return Graph(nodes, graph.edges, graph.name, graph.path, graph.origin)


def largest_component(graph: Graph) -> Array:
    """Whether each vertex of a graph with one type is in it."""
    lists = csr_array((np.ones(len(graph.indices), np.int8), graph.indices, graph.indptr))
    _, component = connected_components(lists, directed=False)
    mask: Array = component == np.bincount(component).argmax()
    return mask


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
