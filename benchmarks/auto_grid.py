"""Is what `auto` settles on as fast as the best fixed choice? A grid of 30 settings on the CPU, and one of 30 on a GPU.

    python benchmarks/auto_grid.py [--device cpu|cuda] [--held-out] [--settings NAMES] [--seconds 0.3] [--out FILE]
        [--limit 300]

In every setting one run has `first_layer`, `order` and paths of features left open, and settles them as a long run does
(predicted, then timed); every other run has one of the fixed choices that are legal there. All of them are ready at
once and train in turn for short windows, so that what else the machine does meets all alike; a choice has the median of
its windows. The fastest of many medians is partly luck: `auto` and it are therefore timed against each other once more,
and the ratio of a setting is the median of these pairs. The aim is 1.03 at most. `least` is the ratio of the shortest
quarters, and `noise` how far two halves of the fixed choice's own windows are apart: a ratio below that says nothing.

With `--held-out` the settings are 30 others for each device, drawn from a seed: nothing was ever fitted to them, and
nothing may be. Settings are chosen by the beginnings of their names. Every line is printed and written to the file when
it ends; those that the file has are not measured again, and none is begun after `--limit` seconds.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from first_layer_gpu import Kept, narrow_graph, session_of, tried_batches
from penstock import Graph
from penstock.errors import PenstockError
from penstock.pipeline.schedule import START, Position, Schedule
from penstock.processes import default_threads
from penstock.train.auto_values import with_order_costs
from penstock.train.finalists import settle
from penstock.train.job import job_of
from penstock.train.session import Session

AIM = 1.03
AUTO = "auto"
BURST = 16
LEAD = 6
"""Batches of a window that are not timed: a pipeline that had to wait has some ready."""
WIDTHS = {"narrowing": (256, 32), "alike": (100, 100), "widening": (32, 256)}
FANOUTS = {"two": [10, 5], "three": [10, 5, 5]}
Fields = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A job on a made graph."""

    name: str
    vertices: int
    columns: int
    fields: Fields = field(default_factory=dict)
    place: str = "host"
    """Of the features."""
    degree: int = 16


def settings(device: str) -> list[Setting]:
    """The grid of a device: sizes of graphs on a CPU, places of features beside a GPU."""
    kinds = {"small": 20_000, "large": 200_000} if device == "cpu" else {"device": 500_000, "pinned": 500_000}
    rows = [(model, kind, width, fans) for fans in FANOUTS for width in WIDTHS for kind in kinds for model in _LINEAR]
    rows += [("gat", kind, width, "two") for width in ("narrowing", "widening") for kind in kinds]
    rows += [("gin", kind, "alike", "two") for kind in (kinds if device == "cpu" else ("host", "pinned"))]
    found = []
    for model, kind, width, fans in rows:
        columns, hidden = WIDTHS[width]
        fields = {"model": model, "hidden": hidden, "fanouts": FANOUTS[fans]}
        place = "host" if device == "cpu" else kind
        found.append(Setting(f"{model}-{width}-{fans}-{kind}", kinds.get(kind, 500_000), columns, fields, place))
    return found


_LINEAR = ("sage", "gcn")

HELD_OUT_SEED = 20_261_118
"""Fixed before any figure was fitted after it; another seed is another set of settings, to be named as such."""
_HELD_OUT_MODELS = ("sage", "sage", "gcn", "gcn", "gin", "gat")


def held_out(device: str, seed: int = HELD_OUT_SEED) -> list[Setting]:
    """Thirty settings of a device that no rate was fitted to: graphs, widths, fan-outs and batches drawn by lot."""
    found = []
    for k in range(30):
        lot = random.Random(f"{seed} {device} {k}")
        vertices = round(10 ** lot.uniform(4.3, 5.7 if device == "cpu" else 6.0))
        columns, hidden = lot.choice((16, 50, 128, 300, 602)), lot.choice((24, 64, 128, 256))
        fanouts = [lot.choice((4, 8, 12, 20)) for _ in range(lot.choice((1, 2, 2, 3)))]
        fields = {
            "model": lot.choice(_HELD_OUT_MODELS),
            "hidden": hidden,
            "fanouts": fanouts,
            "batch_size": lot.choice((256, 512, 1024, 2048)),
        }
        place = "host" if device == "cpu" else lot.choice(("device", "device", "pinned", "pinned", "host"))
        name = f"{k}-{fields['model']}-{columns}-{hidden}-{'x'.join(map(str, fanouts))}-{place}"
        found.append(Setting(name, vertices, columns, fields, place, lot.choice((6, 16, 40))))
    return found


def fixed_choices(setting: Setting, device: str) -> dict[str, Fields]:
    """Every fixed choice that may be legal; a job that is not refuses itself."""
    orders = ("aggregate", "transform") if setting.fields["model"] != "gat" else ("auto",)
    read = "gather" if device == "cpu" or setting.place == "host" else "device"
    ways: dict[str, Fields] = {f"{read} {order}": {"first_layer": read, "order": order} for order in orders}
    if device == "cpu":
        return ways | _host_ways(("aggregate",))
    if setting.place == "device":
        return ways | {"launched": {"first_layer": "device", "capture": False}}
    ways |= _host_ways(("aggregate", "transform"))
    if setting.place == "pinned":
        ways["pinned alone"] = {"first_layer": "device", "feature_paths": ["pinned"]}
        ways |= _host_ways(("gather", "divided"))
    return ways


def _host_ways(names: Sequence[str]) -> dict[str, Fields]:
    return {f"{name} ahead": {"first_layer": name} for name in names}


def job_fields(setting: Setting, device: str, choice: Fields | None) -> Fields:
    """Of a run with a fixed choice, or None for one that settles everything."""
    fields: Fields = {
        "batch_size": 1024, **setting.fields, "device": device, "epochs": 1_000_000, "evaluate_every": -1,
        "dropout": 0.0, "timed_choices": ["feature_paths", "first_layer", "order"],
    }  # fmt: skip
    if device == "cuda":
        placement: Fields = {"features": setting.place}
        fields |= {"placement": placement | ({"cache_rows": 0} if setting.place == "pinned" else {})}
    return fields | (choice or {})


class Runner:
    """A run that is ready, and trains for a window when it is asked to."""

    def __init__(self, session: Session, stack: ExitStack) -> None:
        self._session, self._schedule = session, Schedule(session.task.items, session.task.batch_size, session.job.seed)
        self._steps: Iterator[list[Any]] = iter(
            stack.enter_context(session.execution.steps(self._schedule, START, self._pause, lambda *_: None))
        )
        self._train(tried_batches(session), 2.0)

    def seconds(self, window: float) -> float:
        """Of a batch, within a window of so many seconds."""
        self._train(LEAD, window)
        began = time.perf_counter()
        count = self._train(10**9, window)
        return (time.perf_counter() - began) / count

    def _train(self, batches: int, seconds: float) -> int:
        """So many batches, or as many as take so long; returns how many there were."""
        count, end = 0, time.perf_counter() + seconds
        while count < batches and (count == 0 or time.perf_counter() < end):
            count += len(next(self._steps))
        return count

    def _pause(self, position: Position) -> int:
        return min(BURST, self._schedule.batches - position.batch)


def interleaved(runners: dict[str, Callable[[float], float]], window: float, turns: int) -> dict[str, list[float]]:
    """What each of some runners took in every turn; odd turns go backwards."""
    taken: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(turns):
        for name in list(runners)[:: -1 if turn % 2 else 1]:
            taken[name].append(runners[name](window))
    return taken


def ratio_of_pairs(ours: Sequence[float], others: Sequence[float]) -> float:
    """The median of how much longer ours took, pair by pair."""
    return statistics.median(a / b for a, b in zip(ours, others, strict=True))


def least(taken: Sequence[float]) -> float:
    """The mean of the shortest quarter: other programs make windows longer, and none shorter."""
    shortest = sorted(taken)[: max(1, len(taken) // 4)]
    return sum(shortest) / len(shortest)


def noise_of(taken: Sequence[float]) -> float:
    """How far the medians of odd and even windows of one run are apart, as a share."""
    return abs(statistics.median(taken[::2]) / statistics.median(taken[1::2]) - 1)


def compare(setting: Setting, graph: Graph, device: str, window: float, turns: int) -> dict[str, Any]:
    """One line of the table."""
    began, refused, runners = time.perf_counter(), dict[str, str](), dict[str, Callable[[float], float]]()
    with ExitStack() as stack:
        chosen: Fields = {}
        for name, choice in {AUTO: None, **fixed_choices(setting, device)}.items():
            try:
                job = with_order_costs(job_of(job_fields(setting, device, choice)))
                session = stack.enter_context(session_of(job, graph))
            except PenstockError as error:
                refused[name] = str(error)
                continue
            if name == AUTO:
                settle(session)
                chosen = {
                    "first_layer": session.job.first_layer,
                    "order": session.job.order,
                    "feature_paths": session.job.feature_paths,
                    "settled": session.settled,
                }
            runners[name] = Runner(session, stack).seconds
        first = interleaved(runners, window, turns)
        medians = {name: statistics.median(taken) for name, taken in first.items()}
        best = min((name for name in medians if name != AUTO), key=lambda name: medians[name])
        pairs = interleaved({name: runners[name] for name in (AUTO, best)}, window, 2 * turns)
    return {
        "setting": setting.name,
        "device": device,
        "ratio": round(ratio_of_pairs(pairs[AUTO], pairs[best]), 4),
        "ratio_least": round(least(pairs[AUTO]) / least(pairs[best]), 4),
        "noise": round(noise_of(pairs[best]), 4),
        "best": best,
        "ms": {name: round(1e3 * seconds, 4) for name, seconds in medians.items()},
        "chosen": chosen,
        "refused": refused,
        "took_s": round(time.perf_counter() - began, 1),
    }


def missing(
    grid: Sequence[Setting], rows: Sequence[dict[str, Any]], device: str, wanted: Sequence[str]
) -> list[Setting]:
    """Settings that were asked for and that no line has."""
    known = {row["setting"] for row in rows if row["device"] == device}
    return [each for each in grid if each.name not in known and any(map(each.name.startswith, wanted))]


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """The worst setting, and how many miss the aim."""
    worst = max(rows, key=lambda row: row["ratio"])
    over = sum(row["ratio"] > AIM for row in rows)
    return f"{len(rows)} settings, {over} above {AIM:g}; the worst is {worst['setting']} with {worst['ratio']:g}."


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table, and what it comes to."""
    table = Table("setting", "device", "auto, ms", "best fixed, ms", "best", "auto / best", "least", "noise")
    for row in rows:
        ms, best = row["ms"], row["best"]
        times = [f"{ms[AUTO]:.3g}", f"{ms[best]:.3g}", best]
        figures = [f"{row[name]:.3f}" for name in ("ratio", "ratio_least", "noise")]
        table.add_row(row["setting"], row["device"], *times, *figures)
    Console(width=140).print(table)
    print(summary(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--held-out", action="store_true", help="the settings that nothing was fitted to")
    parser.add_argument("--settings", default="", help="beginnings of names; all of them if left out")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a window")
    parser.add_argument("--turns", type=int, default=5, help="windows of each choice")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no setting is begun")
    parser.add_argument("--out", type=Path, help="a JSON file, which is gone on with")
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["rows"] if args.out and args.out.exists() else []
    end, graphs = time.perf_counter() + args.limit, dict[tuple[int, int, int], Graph]()
    grid = held_out(args.device) if args.held_out else settings(args.device)
    with Kept().shared():
        for setting in missing(grid, rows, args.device, args.settings.split(",")):
            if time.perf_counter() > end:
                break
            key = setting.vertices, setting.columns, setting.degree
            graph = graphs.setdefault(key, graphs.get(key) or narrow_graph(*key))
            line = compare(setting, graph, args.device, args.seconds, args.turns)
            rows.append(line)
            print(json.dumps(line), flush=True)
            if args.out:
                found = {"benchmark": "auto grid", "threads": default_threads(), "rows": rows}
                args.out.write_text(json.dumps(found, indent=1) + "\n")
    if rows:
        show(rows)


if __name__ == "__main__":
    main()
