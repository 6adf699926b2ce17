"""Does a model trained here reach its published figure?

Trains the recipes that come with Penstock (`penstock recipes`), one run for each seed, and compares the mean of the
test metric with the published figure. With `--processes N` that many runs go on at a time, each in a process with one
thread; a process is started once and does one run after the other. `--out` is written after every run, and a command
that is given the same file again leaves out the runs that it holds.
Run: python benchmarks/accuracy.py [--data ../shared/data] [--only cora,tolokers:sage] [--seeds 10] [--processes 1]
     [--device cpu|cuda] [--seconds 170] [--out accuracy.json] [--json]
To compare settings by validation, never by test: --split val --set embedding=64
(recipes that train on validation vertices then do not)
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from penstock.api import train
from penstock.train.job import make_job
from penstock.train.recipes import Recipe, prepared_graph, shipped_recipes

DATA = Path(__file__).parents[2] / "shared" / "data"
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "PENSTOCK_THREADS")


class Planned(NamedTuple):
    """One run: what a process is given."""

    recipe: Recipe
    seed: int
    data: Path
    split: str
    changes: dict[str, Any]
    within: float | None = None
    """Seconds for the run, which then has as many of its epochs as fit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the archives")
    parser.add_argument("--only", default="", help="sets, or set:model, with commas between them")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each recipe")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="end what still runs after that time")
    parser.add_argument("--within", type=float, help="seconds for each run: as many of its epochs as fit")
    parser.add_argument("--out", type=Path, help="a JSON file with all runs, written after each")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="another value of a field")
    parser.add_argument("--split", choices=("val", "test"), default="test", help="what runs are judged by")
    parser.add_argument("--json", action="store_true", help="one object for each recipe instead of the table")
    args = parser.parse_args()
    changes = {"device": args.device, **dict(given.split("=", 1) for given in args.set)}
    if args.processes > 1:
        changes["threads"] = 1
    recipes = chosen(args.only, args.device)
    runs = json.loads(args.out.read_text())["runs"] if args.out and args.out.exists() else []
    done = {(run["set"], run["model"], run["seed"]) for run in runs}
    # All recipes with one seed before any has a second: what is cut off has figures for each.
    planned = [
        Planned(recipe, seed, args.data, args.split, changes, args.within)
        for seed in range(args.seeds)
        for recipe in recipes
        if (recipe.set, recipe.model, seed) not in done
    ]
    for run in finished(planned, args.processes, args.seconds):
        runs.append(run)
        print(json.dumps(run), file=sys.stderr, flush=True)
        if args.out:
            write(args.out, {"changes": changes, "split": args.split, "runs": runs, "table": rows_of(recipes, runs)})
    rows = rows_of(recipes, runs)
    if args.json:
        for row in rows:
            print(json.dumps(row))
    else:
        Console(width=140).print(table(rows))


def chosen(only: str, device: str) -> list[Recipe]:
    """The recipes asked for, in their order; those that need a GPU only on one, or where they are named."""
    asked, known = {name for name in only.split(",") if name}, shipped_recipes()
    if unknown := asked - {name for recipe in known for name in (recipe.name, recipe.set)}:
        sys.exit(f"There is no recipe {min(unknown)!r}: choose among {', '.join(recipe.name for recipe in known)}.")
    if asked:
        return [recipe for recipe in known if asked & {recipe.name, recipe.set}]
    return [recipe for recipe in known if device == "cuda" or not recipe.needs_gpu]


def finished(planned: list[Planned], processes: int, seconds: float | None) -> Iterator[dict[str, Any]]:
    """Runs as they end, in this process or in others; other processes are ended after `seconds`."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    if processes == 1:
        yield from (measured(each) for each in planned if time.monotonic() < until)
        return
    # Read by libraries when a process imports them.
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    context = multiprocessing.get_context("spawn")
    number, results = context.Value("i", 0), context.Queue()
    workers = [context.Process(target=_work, args=(planned, number, results), daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    try:
        left = len(planned)
        while left and time.monotonic() < until:
            # A process that was killed says nothing: its run is missing, and the others go on.
            alive = any(worker.is_alive() for worker in workers)
            with contextlib.suppress(queue.Empty):
                yield results.get(timeout=min(1.0, max(0.0, until - time.monotonic())))
                left -= 1
                continue
            if not alive:
                break
        if left:
            print(f"{left} of {len(planned)} runs did not end.", file=sys.stderr, flush=True)
    finally:
        for worker in workers:
            worker.kill()


def _work(planned: list[Planned], number: Any, results: Any) -> None:
    """What a process does: the next run that nobody has taken, until there are none."""
    while True:
        with number.get_lock():
            mine = number.value
            number.value += 1
        if mine >= len(planned):
            return
        results.put(measured(planned[mine]))


def measured(planned: Planned) -> dict[str, Any]:
    """A run's metrics in percent, its seconds and what it took; or the error that it ended with."""
    recipe, start = planned.recipe, time.perf_counter()
    about = {"set": recipe.set, "model": recipe.model, "seed": planned.seed, "changes": planned.changes}
    try:
        with tempfile.TemporaryDirectory() as folder:
            if planned.split == "val":
                kept = {name: done for name, done in recipe.prepare.items() if name != "train_on_validation"}
                recipe = recipe.model_copy(update={"prepare": kept})
            graph = prepared_graph(recipe, planned.data / recipe.job["graph"], Path(folder))
            fields = {**recipe.fields(planned.seed), "graph": str(graph), **planned.changes}
            if planned.within is not None:
                fields["epochs"] = fitting_epochs(fields, planned.within)
            run = train(job=make_job({**fields, "run": str(Path(folder) / "run")}))
            if run.state == "interrupted":
                raise KeyboardInterrupt
            found, val, result = run.test if planned.split == "test" else run.val, run.val, run.result
    except Exception as error:  # One recipe that fails must not cost the others' figures.
        return {**about, "error": f"{type(error).__name__}: {error}"}
    figures = {name: round(100 * value, 3) for name, value in found.items()}
    return {
        **about,
        "score": figures[recipe.metric],
        "val": round(100 * val[recipe.metric], 3) if val else None,
        "metrics": figures,
        "seconds": round(time.perf_counter() - start, 2),
        "epochs": result["epochs"],
        "epoch_seconds": round(statistics.median(result["epoch_seconds"]), 4),
        "peak_rss_mb": result["peak_rss_mb"],
        "device_peak_mb": result["device_peak_mb"],
    }


def fitting_epochs(fields: dict[str, Any], seconds: float) -> int:
    """How many epochs fit in `seconds`, by three of them, which count; at most those that the recipe has."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tried = train(job=make_job({**fields, "epochs": 3, "run": str(Path(folder) / "run")}))
        epoch = statistics.median(tried.result["epoch_seconds"])
    # Starting and testing again takes what it took beside the three epochs.
    beside = time.perf_counter() - start - 3 * epoch
    left = seconds - (time.perf_counter() - start) - beside
    return max(1, min(int(fields["epochs"]), int(0.9 * left / epoch)))


def rows_of(recipes: list[Recipe], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each recipe the mean and standard deviation of its runs' scores; seconds are those of one run."""
    rows = []
    for recipe in recipes:
        mine = [run for run in runs if (run["set"], run["model"]) == (recipe.set, recipe.model) and "score" in run]
        scores = [run["score"] for run in sorted(mine, key=lambda run: run["seed"])]
        mean = statistics.fmean(scores) if scores else None
        rows.append(
            {
                "set": recipe.set,
                "model": recipe.model,
                "metric": recipe.metric,
                "seeds": len(scores),
                "mean": None if mean is None else round(mean, 2),
                "std": round(statistics.stdev(scores), 2) if len(scores) > 1 else None,
                "published": recipe.published,
                "from_memory": recipe.from_memory,
                "plain": recipe.plain,
                "difference": None if mean is None or recipe.published is None else round(mean - recipe.published, 2),
                "seconds": round(statistics.fmean(run["seconds"] for run in mine), 1) if mine else None,
                "scores": scores,
            }
        )
    return rows


def write(path: Path, document: dict[str, Any]) -> None:
    """Replace a file at once, so that whoever ends the program finds a whole one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(document))
    new.replace(path)


def table(rows: list[dict[str, Any]]) -> Table:
    """One line for each recipe."""
    shown = Table("set", "model", "metric", "seeds", "ours", "published", "plain GCN", "difference", "seconds a run")
    for row in rows:
        spread = "" if row["std"] is None else f" ± {row['std']:.2f}"
        shown.add_row(
            row["set"],
            row["model"],
            row["metric"],
            str(row["seeds"]),
            _figure(row["mean"], ".2f") + spread,
            _figure(row["published"], ".1f") + (" *" if row["from_memory"] else ""),
            _figure(row["plain"], ".1f"),
            _figure(row["difference"], "+.2f"),
            _figure(row["seconds"], ".1f"),
        )
    return shown


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    main()
