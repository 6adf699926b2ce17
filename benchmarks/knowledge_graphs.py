"""Do knowledge graph models trained here reach their published figures, and how fast are filtered ranks?

Trains ComplEx, DistMult, TransE and RotatE with each seed on FB15k-237 and on a made graph of WN18RR's shape
(`made_triples.py`), `--processes` runs at a time, and ends what still runs after `--seconds`. All models have a first
seed before any has a second. Without `--recipes`, rows are narrower and epochs fewer than in the recipes: ten seeds of
all eight then take minutes of one GPU, and figures lie below the published ones. `--epochs` is for all models,
`--times` multiplies what each has, `--set` changes any field. `--out` is written after every run, with all results,
means and standard deviations; a command that is given the same file again leaves out the runs that it holds.
Run: python benchmarks/knowledge_graphs.py [--data ../shared/data/fb15k-237.npz] [--entities 40000] [--seeds 10]
     [--processes 6] [--device cuda] [--seconds 540] [--recipes] [--only wordnet-like,rotate] [--out figures.json]
     [--width 100] [--epochs 5] [--times 0.5] [--set embedding_init=identity]
To compare the speed of ranking with a plain loop in torch: --ranking [--width 200] [--triples 1000]
"""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from accuracy import Planned, finished, rows_of, table, write
from made_triples import save, wordnet_like
from penstock.graph.convert import load
from penstock.graph.folder import Graph
from penstock.nn.scorers import RelationScorer, build_scorer
from penstock.sampling.triples import (
    Entities,
    KnownTriples,
    Triples,
    filtered_ranks,
    held_out_triples,
    relations_of,
    training_triples,
)
from penstock.train.recipes import Recipe, recipe_for

DATA = Path(__file__).parents[2] / "shared" / "data" / "fb15k-237.npz"
SETS = {"fb15k-237": "fb15k-237", "wordnet-like": "wn18rr"}
"""By set, whose recipes are trained on it."""
MODELS = ("complex", "rotate", "distmult", "transe")
"""Those that most is open about come first."""
_FALLING: dict[str, Any] = {"schedule": "StepLR", "schedule_of": "all"}
SHORT: dict[str, dict[str, Any]] = {
    "fb15k-237:complex": {"embedding": 512, "batch_size": 1000, "epochs": 20},
    "fb15k-237:distmult": {"embedding": 512, "batch_size": 1000, "epochs": 20},
    "fb15k-237:transe": {"embedding": 512, "epochs": 40, "lr": 0.0005, "embedding_lr": 0.0005, **_FALLING},
    "fb15k-237:rotate": {"embedding": 512, "epochs": 40, "lr": 0.01, "embedding_lr": 0.0005, **_FALLING},
    "wordnet-like:complex": {"embedding": 256, "batch_size": 1000, "epochs": 20},
    "wordnet-like:distmult": {"embedding": 256, "batch_size": 1000, "epochs": 20},
    "wordnet-like:transe": {"embedding": 256, "epochs": 40, "lr": 0.001, "embedding_lr": 0.001, **_FALLING},
    "wordnet-like:rotate": {"embedding": 256, "epochs": 40, "lr": 0.01, "embedding_lr": 0.001, **_FALLING},
}
"""What is changed of recipes, so that ten seeds of each take a few minutes."""


def job_of(recipe: Recipe, asked: argparse.Namespace) -> dict[str, Any]:
    """A recipe's job, or a shorter one; rates that fall do so in the middle."""
    job = {**recipe.job, "graph": f"{recipe.set}.npz", **({} if asked.recipes else SHORT[recipe.name])}
    if asked.width is not None:
        job["embedding"] = asked.width
    job["epochs"] = max(1, round(asked.times * (job["epochs"] if asked.epochs is None else asked.epochs)))
    if "schedule" in job:
        job["schedule_options"] = {"step_size": max(1, job["epochs"] // 2), "gamma": 0.1}
    return job


def chosen(asked: argparse.Namespace) -> list[Recipe]:
    """What is trained; the made graph has the recipes of WN18RR, and no published figures."""
    names = [f"{data}:{model}" for model in MODELS for data in SETS]
    wanted = {name for name in asked.only.split(",") if name}
    if unknown := wanted - {*names, *SETS, *MODELS}:
        sys.exit(f"There is no {min(unknown)!r}: choose among {', '.join([*SETS, *MODELS, *names])}.")
    found = []
    for data, model in (name.split(":") for name in names):
        if not wanted or wanted & {f"{data}:{model}", data, model}:
            recipe = recipe_for(SETS[data], model).model_copy(update={"set": data})
            if data != SETS[data]:
                recipe = recipe.model_copy(update={"published": None, "source": None, "from_memory": False})
            found.append(recipe.model_copy(update={"job": job_of(recipe, asked)}))
    return found


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
    for name in MODELS:
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
    parser.add_argument("--data", type=Path, default=DATA, help="FB15k-237 as an archive")
    parser.add_argument("--entities", type=int, default=40_000, help="of the made graph")
    parser.add_argument("--only", default="", help="sets, models or set:model, with commas between them")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="end what still runs after that time")
    parser.add_argument("--recipes", action="store_true", help="train the recipes as they are")
    parser.add_argument("--width", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--times", type=float, default=1.0, help="multiplies the epochs")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="another value of a field")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ranking", action="store_true", help="measure the ranking alone")
    parser.add_argument("--triples", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    until = math.inf if asked.seconds is None else time.monotonic() + asked.seconds
    recipes = chosen(asked)
    if (asked.ranking or any(each.set == "fb15k-237" for each in recipes)) and not asked.data.exists():
        sys.exit(
            f"{asked.data} is not there: name FB15k-237 with --data, or train the made graph with --only wordnet-like."
        )
    if asked.ranking:
        print(json.dumps(ranking_speed(load(asked.data), asked.width or 200, asked.triples)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = trained(recipes, asked, until, Path(folder))
    if asked.json:
        print(json.dumps(rows))
        return
    Console(width=140).print(table(rows))


def trained(recipes: list[Recipe], asked: argparse.Namespace, until: float, folder: Path) -> list[dict[str, Any]]:
    """A row for each recipe; `folder` is for the made graph and a link to the other."""
    (folder / "fb15k-237.npz").symlink_to(asked.data.resolve())
    save(folder / "wordnet-like.npz", wordnet_like(asked.entities))
    changes = {"device": asked.device, **({"threads": 1} if asked.processes > 1 else {})}
    changes |= dict(given.split("=", 1) for given in asked.set)
    runs = json.loads(asked.out.read_text())["runs"] if asked.out and asked.out.exists() else []
    done = {(run["set"], run["model"], run["seed"]) for run in runs}
    planned = [
        Planned(recipe, seed, folder, "test", changes)
        for seed in range(asked.seeds)
        for recipe in recipes
        if (recipe.set, recipe.model, seed) not in done
    ]
    for run in finished(planned, asked.processes, None if math.isinf(until) else until - time.monotonic()):
        runs.append(run)
        print(json.dumps(run), file=sys.stderr, flush=True)
        if asked.out:
            jobs = {recipe.name: recipe.job for recipe in recipes}
            rows = rows_of(recipes, runs)
            write(
                asked.out, {"changes": changes, "entities": asked.entities, "jobs": jobs, "runs": runs, "table": rows}
            )
    return rows_of(recipes, runs)


if __name__ == "__main__":
    main()
