"""What the GPU benchmarks share: where a large graph is put, `penstock train` run in a process, how rows are shown."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.graph.folder import Graph
from penstock.graph.generate import GraphRecipe, make_graph, recipe_named
from penstock.progress import Progress

FANOUTS = [15, 10, 5]
BATCH = 1024
HIDDEN = 256
NEVER = -1
"""`evaluate_every` of a run that is only timed."""
SAGE = {
    "model": "sage",
    "hidden": HIDDEN,
    "fanouts": FANOUTS,
    "batch_size": BATCH,
    "evaluate_every": NEVER,
    "checkpoint_minutes": 0.0,
}
"""The job of every figure: GraphSAGE 3x256, fan-out 15,10,5, batches of 1024."""
_COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]


def end_children_when_ended() -> None:
    """A polite kill ends this process as an error would: with its children, which have groups of their own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def in_a_process(command: Sequence[str], limit: float) -> dict[str, Any]:
    """The last JSON object that a command prints, or `error`; what it tells people is passed on.

    Past `limit` seconds it is ended. It has a process group of its own, so that workers it started die with it.
    """
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as answer:
        process = subprocess.Popen(command, stdout=answer, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {limit:g} s", "wall_s": round(time.perf_counter() - began, 1)}
        finally:
            _end_group(process)
        answer.seek(0)
        found = last_object(answer.read())
    wall = {"wall_s": round(time.perf_counter() - began, 1)}
    if found is None or code:
        return {"error": f"ended with {code}; see above", **wall}
    return {**found, **wall}


def trained(fields: dict[str, Any], limit: float) -> dict[str, Any]:
    """The JSON of `penstock train` with these job fields, run as a user runs it."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        return in_a_process([*_COMMAND, "train", *flags({**fields, "run": run}), "--json"], limit)


def trained_aloud(fields: dict[str, Any], limit: float, told: Callable[[float, str], None]) -> dict[str, Any]:
    """`trained`, where `told` gets each line of progress at once, with the seconds since the start: a run that is ended
    at its limit has told how far it came."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["train", *flags({**fields, "run": str(run)})]
        process = subprocess.Popen([*_COMMAND, *words], stderr=subprocess.PIPE, text=True, start_new_session=True)

        def pass_on() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                told(round(time.perf_counter() - began, 1), line.rstrip())

        reader = threading.Thread(target=pass_on, daemon=True)
        reader.start()
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {limit:g} s", "epoch_seconds": _epoch_seconds(run)}
        finally:
            _end_group(process)
            reader.join()
        wall = {"wall_s": round(time.perf_counter() - began, 1)}
        if code:
            return {"error": f"ended with {code}; see above", **wall}
        result: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))["result"]
        return {**result, **wall}


def _epoch_seconds(run: Path) -> list[float]:
    """Of the epochs that a run has done so far."""
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    records = [found for line in lines if (found := last_object(line)) is not None]
    return [record["seconds"] for record in records if record.get("kind") == "epoch"]


def flags(fields: dict[str, Any]) -> list[str]:
    """Job fields as they are written on the command line; None is left out."""
    words: list[str] = []
    for name, value in fields.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            words += [f"--{flag}", json.dumps(value)]
        else:
            words += [f"--{flag}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return words


def given_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """`name=value` words as job fields; yes and no are truth values."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark:
            sys.exit(f"--job {pair} is no field: write name=value.")
        fields[name] = {"yes": True, "no": False}.get(value, value)
    return fields


def last_object(text: str) -> dict[str, Any] | None:
    """The last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def speed(result: dict[str, Any], batches: int) -> dict[str, Any]:
    """Of a run's epochs behind the first, which compiles and warms up: seconds and batches a second."""
    if "error" in result:
        return {"error": result["error"]}
    epochs = result["epoch_seconds"][1:] or result["epoch_seconds"]
    middle = statistics.median(epochs)
    return {
        "first_epoch_s": round(result["epoch_seconds"][0], 4),
        "epoch_s_min": round(min(epochs), 4),
        "epoch_s_median": round(middle, 4),
        "epoch_s_max": round(max(epochs), 4),
        "batches_per_second": round(batches / middle, 2),
    }


def compared(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """Means, spreads and the mean difference of pairs, also in its standard errors; None where pairs do not vary."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean, several = statistics.fmean(differences), len(differences) > 1
    error = statistics.stdev(differences) / len(differences) ** 0.5 if several else 0.0
    return {
        "cpu_mean": round(statistics.fmean(first), 3),
        "cpu_std": round(statistics.stdev(first), 3) if several else None,
        "gpu_mean": round(statistics.fmean(second), 3),
        "gpu_std": round(statistics.stdev(second), 3) if several else None,
        "difference": round(mean, 3),
        "standard_error": round(error, 3),
        "in_errors": round(mean / error, 2) if error else (0.0 if mean == 0 else None),
    }


def batches_an_epoch(graph: Graph, size: int = BATCH) -> int:
    """Steps over the training split, the last, smaller batch counted."""
    return -(-len(graph.split("train")) // size)


def made(name: str, folder: Path, scale: float, symmetric: bool = False, dtype: str = "float32") -> Graph:
    """A synthetic graph, from the folder or made into it; the time of every step is told."""
    recipe = replace(recipe_named(name).scaled(scale), feature_dtype=dtype)
    recipe = recipe.made_symmetric() if symmetric else recipe
    if (folder / "graph.json").exists():
        tell(f"{folder}: found")
        return Graph.open(folder)
    began = time.perf_counter()
    graph = make_graph(recipe, folder, progress=_Steps())
    tell(f"{folder}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges in {time.perf_counter() - began:.1f} s")
    return graph


def folder_with_room(name: str, wanted: int, working: int = 0) -> Path:
    """Where `name` is, or where `wanted` bytes fit: memory if `working` bytes remain beside them, else a disk."""
    memory, disk = Path("/dev/shm"), Path(tempfile.gettempdir())
    for parent in (memory, disk):
        if (parent / name / "graph.json").exists():
            return parent / name
    if memory.is_dir() and shutil.disk_usage(memory).free > wanted and free_memory() > wanted + working:
        return memory / name
    if shutil.disk_usage(disk).free > wanted:
        return disk / name
    sys.exit(f"{wanted / 1e9:.0f} GB fit neither in {memory} nor in {disk}: name a folder with --graph.")


def folder_bytes(recipe: GraphRecipe) -> int:
    """What a graph of one symmetric relation takes at most while it is made: both directions and the drawn one."""
    (node,), (edge,) = recipe.nodes.values(), recipe.edges
    return node.count * (node.features * (2 if recipe.feature_dtype == "float16" else 4) + 24) + 6 * edge.count


def free_memory() -> int:
    """Bytes that can be had without swapping, as Linux says; none elsewhere."""
    file = Path("/proc/meminfo")
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def stage_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """A run's stages, one row each."""
    return [{"stage": name, **values} for name, values in (result.get("stages") or {}).items()]


def report(title: str, rows: list[dict[str, Any]], out: Path | None, **more: Any) -> None:
    """The rows as a table and, where asked for, all of it as JSON in a file."""
    names = list(
        dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, (dict, list)))
    )
    table = Table(*names, title=title, title_justify="left", box=None)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    Console(width=200, file=sys.stdout).print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"benchmark": title, "rows": rows, **more}, indent=1) + "\n", encoding="utf-8")


def tell(what: str | dict[str, Any]) -> None:
    """A line at once: a measurement may not live to see its table."""
    print(json.dumps(what) if isinstance(what, dict) else what, file=sys.stderr, flush=True)


class _Steps(Progress):
    @contextmanager
    def step(self, what: str, total: int = 0, unit: str = "") -> Iterator[None]:
        began, used = time.perf_counter(), time.process_time()
        yield
        tell(f"  {what}: {time.perf_counter() - began:.1f} s, {time.process_time() - used:.0f} s of processors")


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value}"
