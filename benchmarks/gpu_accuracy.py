"""Does a GPU train the same models as the CPU?

The recipes of Penstock for every labelled set in a folder of archives, and synthetic-arxiv: the same job on both
devices with the same seeds, both devices at the same time. The difference is that of the pairs with the same seed (and
so the same split), in units of its standard error: within about two there is none to be seen.
Run: python benchmarks/gpu_accuracy.py --data FOLDER [--only cora,synthetic-arxiv] [--seeds 5] [--out accuracy.json]
"""

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from accuracy import DATA
from gpu_runs import compared, end_children_when_ended, given_fields, in_a_process, made, report, tell
from penstock.api import train
from penstock.processes import default_threads
from penstock.train.job import make_job
from penstock.train.recipes import Recipe, prepared_graph, shipped_recipes

SYNTHETIC = Recipe(
    set="synthetic-arxiv",
    model="sage",
    metric="accuracy",
    job={"graph": "synthetic-arxiv", "model": "sage", "epochs": 5},
)
RECIPES = [*(recipe for recipe in shipped_recipes() if not recipe.needs_gpu), SYNTHETIC]
DEVICES = ("cpu", "cuda")


def main() -> None:
    end_children_when_ended()
    args = arguments()
    if args.one is not None:
        measure(args)
        return
    recipes = chosen(args)
    if SYNTHETIC in recipes:
        made(SYNTHETIC.set, synthetic_folder(), 1.0)
    first, second = args.devices.split(",")
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        cpu = one.map(lambda recipe: scores(recipe, first, args), recipes)
        gpu = other.map(lambda recipe: scores(recipe, second, args), recipes)
        rows = []
        for recipe, on_cpu, on_gpu in zip(recipes, cpu, gpu, strict=True):
            rows.append({"set": recipe.set, "model": recipe.model, "metric": recipe.metric})
            rows[-1] |= row_of(on_cpu, on_gpu)
            tell(rows[-1])
    report(f"test metric in percent, {args.seeds} seeds, {args.devices}", rows, args.out)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the archives")
    parser.add_argument("--only", default="", help="sets, or set:model, with commas between them")
    parser.add_argument("--seeds", type=int, default=5, help="runs a recipe and device")
    parser.add_argument("--devices", default=",".join(DEVICES), help="the two to compare")
    parser.add_argument("--job", action="append", default=[], metavar="NAME=VALUE", help="any other field of the jobs")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for a recipe's seeds on one device")
    parser.add_argument("--out", type=Path, help="write all of it as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[Recipe]:
    """The recipes asked for whose archive is there."""
    asked = {name for name in args.only.split(",") if name}
    recipes = [recipe for recipe in RECIPES if not asked or asked & {recipe.name, recipe.set}]
    there = [recipe for recipe in recipes if recipe is SYNTHETIC or graph_of(recipe, args.data).exists()]
    if absent := sorted({recipe.set for recipe in recipes} - {recipe.set for recipe in there}):
        tell(f"not in {args.data}: {', '.join(absent)}")
    return there or sys.exit("There is nothing to train: name sets with --only and their folder with --data.")


def scores(recipe: Recipe, device: str, args: argparse.Namespace) -> dict[str, Any]:
    """One recipe on one device, every seed, in a process that may not take longer than the limit."""
    command = [sys.executable, __file__, "--one", recipe.name, "--devices", device, "--data", str(args.data)]
    given = [word for pair in args.job for word in ("--job", pair)]
    return in_a_process([*command, "--seeds", str(args.seeds), *given], args.limit)


def measure(args: argparse.Namespace) -> None:
    """What such a process does: print the test metric of every seed."""
    recipe = next(recipe for recipe in RECIPES if recipe.name == args.one)
    # Half the cores each: both devices are at work.
    more = {"device": args.devices, "threads": max(1, default_threads() // 2), **given_fields(args.job)}
    began = time.perf_counter()
    found = [round(100 * score(recipe, args.data, seed, more), 3) for seed in range(args.seeds)]
    print(json.dumps({"scores": found, "seconds": round((time.perf_counter() - began) / args.seeds, 2)}))


def score(recipe: Recipe, data: Path, seed: int, more: dict[str, Any]) -> float:
    """The test metric of one run."""
    with tempfile.TemporaryDirectory() as folder:
        graph = prepared_graph(recipe, graph_of(recipe, data), Path(folder))
        fields = {**recipe.fields(seed), **more, "graph": str(graph)}
        return train(job=make_job({**fields, "run": str(Path(folder) / "run")})).test[recipe.metric]


def row_of(cpu: dict[str, Any], gpu: dict[str, Any]) -> dict[str, Any]:
    """Both devices beside each other."""
    if problem := cpu.get("error") or gpu.get("error"):
        return {"error": problem}
    figures = compared(cpu["scores"], gpu["scores"])
    seconds = {"cpu_seconds": cpu["seconds"], "gpu_seconds": gpu["seconds"]}
    return {**figures, **seconds, "cpu_scores": cpu["scores"], "gpu_scores": gpu["scores"]}


def graph_of(recipe: Recipe, data: Path) -> Path:
    """Where a recipe's graph is."""
    return synthetic_folder() if recipe.set == SYNTHETIC.set else data / f"{recipe.set}.npz"


def synthetic_folder() -> Path:
    """Where synthetic-arxiv is made and kept."""
    return Path(tempfile.gettempdir()) / "penstock-arxiv-1"


if __name__ == "__main__":
    main()
