"""What do graphs and runs at addresses of an object store cost, beside folders of this machine?

A server on this machine speaks S3 over HTTP (moto's; another one with --endpoint HOST:PORT and the usual variables for
its keys). A graph is sent and fetched, as its files are by pyarrow alone and on the local disk, each in turn so many
times. Then a run trains from the store and to it, beside the same run of local folders: seconds until it ends, with an
empty cache and with the graph in it. At last it is killed between two checkpoints, and resumed with another cache.
Run: python benchmarks/object_store.py [--scale 0.1] [--rounds 3] [--json-out object_store.json]
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from pyarrow import fs
from rich.console import Console
from rich.table import Table

from penstock.graph.object_folders import ObjectFolder, local_copy, new_copy, send
from penstock.train.run_files.checkpoints import read_best

GRAPH, RUN = "s3://bucket/graph", "s3://bucket/run"
FLAGS = ("--fanouts", "10,5", "--hidden", "64", "--evaluate-every", "-1", "--threads", "1", "--json")


def main() -> None:
    """Measure, print, and write what was found."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--scale", default="0.1", help="of synthetic-products")
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--epochs", type=int, default=3)
    words.add_argument("--endpoint", help="a server that runs already, with a bucket named `bucket`")
    words.add_argument("--json-out", type=Path)
    asked = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-object-store-") as place, server(asked.endpoint) as store:
        folder = Path(place)
        penstock(folder, "data", "make", "synthetic-products", "--scale", asked.scale, "--out", folder / "graph")
        found: dict[str, Any] = {"bytes": size_of(folder / "graph"), **transfers(folder, store, asked.rounds)}
        found |= runs(folder, asked.epochs) | resumed(folder, store)
    show(found)
    if asked.json_out:
        asked.json_out.write_text(json.dumps(found, indent=1) + "\n")


@contextmanager
def server(endpoint: str | None) -> Iterator[fs.S3FileSystem]:
    """A store to send to, as pyarrow reaches it; programs find it by their environment."""
    process = None
    if endpoint is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        host, port = endpoint.split(":")
        command = [sys.executable, "-m", "moto.server", "-H", host, "-p", port]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ |= {"AWS_ENDPOINT_URL": f"http://{endpoint}", "AWS_DEFAULT_REGION": "us-east-1"}
    try:
        while not _answers(endpoint):
            if process is not None and process.poll() is not None:
                sys.exit("The S3 server has ended: install moto with flask and flask_cors, or name an --endpoint.")
            time.sleep(0.05)
        store = fs.S3FileSystem(
            endpoint_override=endpoint, scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        store.create_dir("bucket")
        yield store
    finally:
        if process is not None:
            process.terminate()
            process.wait()


def _answers(endpoint: str) -> bool:
    host, port = endpoint.split(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True


def transfers(folder: Path, store: fs.S3FileSystem, rounds: int) -> dict[str, float]:
    """Seconds of sending and fetching a graph: ours in one program, pyarrow's copy of the same files, a local copy."""
    here = fs.LocalFileSystem()
    took: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        took.setdefault(name, []).append(time.perf_counter() - began)

    def fetched_by_pyarrow() -> None:
        fs.copy_files("bucket/plain", str(folder / "plain"), source_filesystem=store, destination_filesystem=here)

    def sent_by_pyarrow() -> None:
        fs.copy_files(str(folder / "graph"), "bucket/plain", source_filesystem=here, destination_filesystem=store)

    for turn in range(rounds):
        os.environ["PENSTOCK_CACHE"] = str(folder / f"sends-{turn}")
        shutil.copytree(folder / "graph", new_copy(Path(GRAPH), True), dirs_exist_ok=True)
        timed("send", lambda: send(ObjectFolder.at(GRAPH).local))
        timed("pyarrow sends", sent_by_pyarrow)
        os.environ["PENSTOCK_CACHE"] = str(folder / f"fetches-{turn}")
        timed("fetch", lambda: local_copy(GRAPH))
        timed("fetch what is there", lambda: local_copy(GRAPH))
        timed("pyarrow fetches", fetched_by_pyarrow)
        timed("copy a folder", lambda: shutil.copytree(folder / "graph", folder / "plain", dirs_exist_ok=True))
        for left in ("plain", f"sends-{turn}", f"fetches-{turn}"):
            shutil.rmtree(folder / left, ignore_errors=True)
    return {name: median(seconds) for name, seconds in took.items()}


def runs(folder: Path, epochs: int) -> dict[str, float]:
    """Seconds of a whole `penstock train`: of local folders, from and to the store, and again with a filled cache."""
    found, job = {}, ("--epochs", epochs, *FLAGS)
    penstock(folder, "train", "--graph", folder / "graph", "--run", folder / "warm", *job)
    ways = (("a run here", folder / "graph", folder / "run"), ("a run there, nothing in the cache", GRAPH, f"{RUN}-0"))
    for name, graph, run in (*ways, ("a run there, the graph in the cache", GRAPH, f"{RUN}-1")):
        began = time.perf_counter()
        penstock(folder, "train", "--graph", graph, "--run", run, *job)
        found[name] = time.perf_counter() - began
    return found


def resumed(folder: Path, store: fs.S3FileSystem) -> dict[str, Any]:
    """Seconds of a resumption with an empty cache, of a run that was killed; and whether its weights are the same."""
    command = ("train", "--graph", GRAPH, "--epochs", 4, "--checkpoint-steps", 5, *FLAGS)
    whole = penstock(folder, *command, "--run", folder / "whole")
    with _started(folder, *command, "--run", f"{RUN}-2") as first:
        steps = fs.FileSelector("bucket/run-2/checkpoints", allow_not_found=True)
        while first.poll() is None and len(store.get_file_info(steps)) < 2:
            time.sleep(0.05)
        if first.poll() is not None:
            sys.exit("The run ended before it could be killed: raise --scale.")
        first.send_signal(signal.SIGKILL)
    began = time.perf_counter()
    ended = penstock(folder, "train", "--resume", f"{RUN}-2", "--json", cache="elsewhere")
    seconds = time.perf_counter() - began
    os.environ["PENSTOCK_CACHE"] = str(folder / "elsewhere")
    ours, theirs = (read_best(path / "checkpoints")["learned"] for path in (folder / "whole", local_copy(f"{RUN}-2")))
    same = all((ours[name] == theirs[name]).all() for name in ours)
    assert whole["epochs"] == ended["epochs"]
    return {"a killed run resumed with an empty cache": seconds, "equal weights": bool(same)}


def penstock(folder: Path, *words: object, cache: str = "cache") -> dict[str, Any]:
    """A command's answer."""
    with _started(folder, *words, cache=cache) as process:
        said, errors = process.communicate()
    if process.returncode:
        sys.exit(f"{words} ended with status {process.returncode}: {errors.decode()[-2000:]}")
    return json.loads(said) if "--json" in words else {}


def _started(folder: Path, *words: object, cache: str = "cache") -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "penstock", *map(str, words)]
    environment = {**os.environ, "PENSTOCK_CACHE": str(folder / cache)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def show(found: dict[str, Any]) -> None:
    """Print a table."""
    table = Table("what", "s", "MB/s", title=f"a graph of {found['bytes'] / 1e6:.0f} MB")
    moves = {"send", "fetch", "pyarrow sends", "pyarrow fetches", "copy a folder"}
    for name, value in found.items():
        if isinstance(value, float):
            table.add_row(name, f"{value:.3f}", f"{found['bytes'] / value / 1e6:.0f}" if name in moves else "")
    Console().print(table)
    print(f"Weights after the kill are {'equal' if found['equal weights'] else 'not equal'} to those of one run.")


if __name__ == "__main__":
    main()
