"""Which settings of a recipe are best in validation?

Trains a recipe with its own settings and with each of the given ones, some seeds each, and prints the mean of the
validation metric. The test metric stands beside it, to be read of the chosen line alone.
Run: python benchmarks/recipe_settings.py citeseer:gat --try lr=0.01 --try epochs=500,evaluate_every=1 [--seeds 10]
     [--data ../shared/data] [--processes 6] [--device cpu|cuda] [--seconds 90] [--out settings.json]
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from accuracy import DATA, Planned, chosen, finished, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="set:model")
    parser.add_argument("--try", dest="tried", action="append", default=[], metavar="FIELD=VALUE,...")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the archives")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="end what still runs after that time")
    parser.add_argument("--out", type=Path, help="a JSON file with all runs, written after each")
    args = parser.parse_args()
    (recipe,) = chosen(args.recipe, args.device)
    settings = [{}, *(dict(pair.split("=", 1) for pair in given.split(",")) for given in args.tried)]
    shared = {"device": args.device, "threads": 1}
    planned = [
        Planned(recipe, seed, args.data, "test", {**shared, **changes})
        for seed in range(args.seeds)
        for changes in settings
    ]
    runs = list[dict[str, Any]]()
    for run in finished(planned, args.processes, args.seconds):
        runs.append({**run, "changes": {name: run["changes"][name] for name in run["changes"].keys() - shared.keys()}})
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        if args.out:
            write(args.out, {"recipe": recipe.name, "runs": runs, "table": rows_of(settings, runs)})
    shown = Table("settings", "seeds", "validation", "test")
    for row in rows_of(settings, runs):
        shown.add_row(*map(str, row.values()))
    Console(width=140).print(shown)


def rows_of(settings: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The means of each of the settings, the best in validation first."""
    rows = []
    for changes in settings:
        mine = [run for run in runs if run["changes"] == changes and "score" in run and run["val"] is not None]
        if mine:
            means = [round(statistics.fmean(run[name] for run in mine), 2) for name in ("val", "score")]
            rows.append({"settings": changes, "seeds": len(mine), "val": means[0], "test": means[1]})
    return sorted(rows, key=lambda row: -row["val"])


if __name__ == "__main__":
    main()
