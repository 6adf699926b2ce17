"""Do knowledge graph models trained here reach their published figures, and how fast are filtered ranks?

Trains each model with each seed on a knowledge graph, in slices of `--seconds`: called again, it goes on where it
stopped. Prints the test figures beside the published ones, memory, and the time of filtered ranking beside a plain
loop in torch over the same triples. `--width` and `--epochs` make the recipes smaller than the published ones, and
`--set` changes any field. With `--within`, a run that is not done after so many seconds ends with the epoch that it is
in, and has its figures too. `--out` is a file with one line of JSON for each run, written when it ends.
Run: python benchmarks/knowledge_graphs.py [--data ../shared/data/fb15k-237.npz] [--only complex,rotate] [--seeds 3]
     [--width 100] [--epochs 20] [--seconds 500] [--runs runs/knowledge-graphs] [--ranking] [--json]
     [--device cuda] [--within 90] [--set regularisation=0.01] [--out figures.jsonl]
"""

import argparse
import json
import math
import signal
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from penstock.api import Run, train
from penstock.graph.convert import load
from penstock.graph.graph import Graph
from penstock.nn.scorers import RelationScorer, build_scorer
from penstock.progress import Progress
from penstock.sampling.triples import (
    Entities,
    KnownTriples,
    Triples,
    filtered_ranks,
    held_out_triples,
    relations_of,
    training_triples,
)
from penstock.train.callbacks.calls import EpochResult
from penstock.train.recipes import recipes_for

DATA = Path(__file__).parents[2] / "shared" / "data" / "fb15k-237.npz"
RECIPES = {recipe.model: recipe for recipe in recipes_for("fb15k-237")}
DONE = ("finished", "stopped-early")
SMALL: dict[str, dict[str, Any]] = {
    "distmult": {"negatives": "joint", "negatives_per_edge": 1000, "regularisation": 0.005},
    "complex": {"negatives": "joint", "negatives_per_edge": 1000, "regularisation": 0.005},
    "transe": {"negatives_per_edge": 64, "lr": 0.01, "embedding_lr": 0.01},
    "rotate": {"negatives_per_edge": 64, "lr": 0.01, "embedding_lr": 0.01},
}
"""What is changed where `--width` asks for rows that fit a small machine: fewer negatives, weaker penalties."""


class Slice(Progress):
    """Ends a run, as Ctrl-C does, when its time is over."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until, self.asked = until, False

    def advance(self, amount: int) -> None:
        """Ask once."""
        if not self.asked and time.monotonic() > self.until:
            self.asked = True
            signal.raise_signal(signal.SIGINT)


class EndsAt:
    """A callback that ends a run with the first epoch after a time."""

    def __init__(self, until: float) -> None:
        self.until = until

    def __call__(self, epoch: EpochResult) -> bool:
        """Whether the time is over."""
        if epoch.val:
            print(json.dumps({"epoch": epoch.epoch, **epoch.numbers}), file=sys.stderr, flush=True)
        return time.monotonic() > self.until


def fields_of(name: str, seed: int, width: int | None, epochs: int | None) -> dict[str, Any]:
    """The job of a model: its recipe's, or a smaller one."""
    fields = RECIPES[name].fields(seed)
    fields.pop("graph")
    if width is not None:
        fields |= {**SMALL[name], "embedding": width}
    return fields if epochs is None else {**fields, "epochs": epochs}


def run_slice(graph: Graph, path: Path, fields: dict[str, Any], until: float, within: float) -> Run:
    """A run, started or gone on with, until it is finished or its time is over."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ends = EndsAt(time.monotonic() + within)
    if not (path / "run.json").exists():
        made = {"run": str(path), "checkpoint_minutes": 2.0, **fields}
        return train(graph, progress=Slice(until), callbacks=[ends], **made)
    found = Run.open(path)
    return found if found.state in DONE else train(graph, resume=path, progress=Slice(until), callbacks=[ends])


def figures_of(run: Run, name: str, seed: int, fields: dict[str, Any]) -> dict[str, Any]:
    """What a finished run came to."""
    result = _facts(run)["result"]
    seconds = result["epoch_seconds"]
    return {
        "model": name,
        "seed": seed,
        "test": run.test,
        "val": run.val,
        "epochs": result["epochs"],
        "epoch_seconds": median(seconds),
        "all_epochs_seconds": sum(seconds),
        "device_peak_mb": result["device_peak_mb"],
        "fields": fields,
    }


def _facts(run: Run) -> Any:
    """What the run's folder says of it."""
    return json.loads((run.path / "run.json").read_text())


def plain_ranks(
    scorer: RelationScorer, rows: torch.Tensor, triples: Triples, true: dict[tuple[int, int], list[int]]
) -> Any:
    """Tail ranks as a loop over triples has them: one product each, true tails set to minus infinity."""
    found = []
    with torch.no_grad():
        for head, relation, tail in zip(*(column.tolist() for column in triples), strict=True):
            query = scorer.query(rows[head : head + 1], torch.tensor([relation]), "destination")
            scores = scorer.compare(query, rows)[0]
            own = scores[tail].clone()
            scores[true[head, relation]] = -torch.inf
            found.append(1 + int((scores > own).sum()) + int((scores == own).sum()) / 2)
    return np.array(found)


def ranking_speed(graph: Graph, width: int, count: int) -> list[dict[str, Any]]:
    """Seconds to rank the tails of some test triples, here and by the loop, with rows that are not trained."""
    relations = relations_of(graph.edges)
    entities = Entities({name: nodes.count for name, nodes in graph.nodes.items()}, relations)
    test = held_out_triples(graph, relations, entities, "test")
    splits = [held_out_triples(graph, relations, entities, name) for name in ("val", "test")]
    every = Triples.joined([training_triples(graph, relations, entities), *splits])
    chosen = test.at(np.random.default_rng(0).permutation(test.total)[:count])
    true = dict[tuple[int, int], list[int]]()
    for head, relation, tail in zip(*(column.tolist() for column in every), strict=True):
        true.setdefault((head, relation), []).append(tail)
    torch.manual_seed(0)
    rows, found = torch.randn(entities.count, width) / width**0.5, []
    for name in RECIPES:
        scorer: Any = build_scorer(name, width, len(relations))

        def score(kept: Any, relation: Any, end: Any, low: int, high: int, scorer: Any = scorer) -> torch.Tensor:
            query = scorer.query(rows[torch.from_numpy(kept)], torch.from_numpy(relation), end)
            return scorer.compare(query, rows[low:high])

        with torch.no_grad():
            filtered_ranks(score, chosen.at(slice(0, 2)), "destination", entities, KnownTriples(every, entities.count))
            start = time.perf_counter()
            ours = filtered_ranks(score, chosen, "destination", entities, KnownTriples(every, entities.count))
            middle = time.perf_counter()
            plain = plain_ranks(scorer, rows, chosen, true)
            end = time.perf_counter()
        # Products of one row and of many are rounded differently: neighbouring scores may change places.
        assert np.mean(np.abs(ours - plain) <= 2) > 0.99, name
        seconds = {"ours_s": round(middle - start, 3), "loop_s": round(end - middle, 3)}
        found.append({"scorer": name, "triples": count, "width": width, **seconds})
    return found


def main() -> None:
    """Train, rank, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", default=",".join(RECIPES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--width", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--runs", type=Path, default=Path("runs/knowledge-graphs"))
    parser.add_argument("--ranking", action="store_true", help="measure the ranking alone")
    parser.add_argument("--triples", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds for each run")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="another value of a field")
    parser.add_argument("--name", default="", help="of the runs' folders, where fields are changed")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if not asked.data.exists():
        sys.exit(f"{asked.data} is not there: name a knowledge graph with --data.")
    graph, until, rows = load(asked.data), time.monotonic() + asked.seconds, list[dict[str, Any]]()
    if asked.ranking:
        rows = ranking_speed(graph, asked.width or 200, asked.triples)
    for name in [] if asked.ranking else asked.only.split(","):
        runs = []
        for seed in range(asked.seeds):
            if time.monotonic() < until:
                changes = {"device": asked.device, **dict(given.split("=", 1) for given in asked.set)}
                fields = {**fields_of(name, seed, asked.width, asked.epochs), **changes}
                path = asked.runs / f"{name}-{asked.width or 'full'}{asked.name}-{seed}"
                runs.append(run_slice(graph, path, fields, until, asked.within))
                if asked.out and runs[-1].state in DONE:
                    with asked.out.open("a") as out:
                        out.write(json.dumps(figures_of(runs[-1], name + asked.name, seed, fields)) + "\n")
        done = [run for run in runs if run.state in DONE]
        figures = {key: round(mean(run.test[key] for run in done), 4) for key in (done[0].test if done else ())}
        memory = max((_facts(run)["result"]["peak_rss_mb"] for run in done), default=None)
        published = (RECIPES[name].published or 0) / 100 if "fb15k-237" in asked.data.name else None
        rows.append(
            {"model": name, "finished": len(done), "published_mrr": published, **figures, "peak_rss_mb": memory}
        )
    if asked.json:
        print(json.dumps(rows))
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(row.get(key, "")) for key in columns))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
