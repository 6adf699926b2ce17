"""What a training process takes of the host beside its arrays: the interpreter, torch, kernels, and what the library of
matrix products keeps. Measured once.

Run as a program (`python -m`), this module is what is measured: it trains a tiny graph, multiplies matrices, and prints
the bytes that its process then has, how many of them are pages of files, and how many kernels it compiled.
"""

import functools
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, ValidationError

from penstock.cache_folders import cache_folder
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.documents import StrictDocument
from penstock.graph.files import read_document, write_whole
from penstock.graph.folder import Graph
from penstock.kernels import compilation
from penstock.memory import file_mb, resident_mb
from penstock.processes import default_threads, start_python
from penstock.progress import SILENT
from penstock.train.job import make_job

_CUDA_ON_HOST = 900 << 20
"""Bytes of the host that CUDA's libraries and torch's kernels for a GPU take: assumed, not measured."""
_STATED = 420 << 20
_TIMEOUT = 120
_USUAL = "neighbour"
_TINY: dict[str, dict[str, Any]] = {
    "cluster": {"layers": 2, "clusters": 4, "batch_size": 2},
    **{name: {"layers": 2} for name in ("whole", "saint-vertex", "saint-edge", "saint-walk")},
}
"""How a tiny graph is trained with samplers that have no fan-outs."""
_PRODUCTS = ((1024, 64), (2048, 128), (4096, 256))
"""Rows and widths of products, which together have their library take all buffers that it keeps for itself."""


class ProcessMemory(StrictDocument):
    """The measured memory of a training process."""

    resident: int = Field(ge=0, description="bytes of a process that has trained a tiny graph and multiplied matrices")
    files: int = Field(ge=0, description="how many of them are pages of files: of programs and libraries")
    measured_on: str | None = Field(None, description="the torch and the Python that were measured; none: stated")


def process_bytes(on_device: bool, sampler: str) -> int:
    """Resident bytes of a process that has trained a tiny graph with a sampler: each loads kernels of its own."""
    return _known(sampler).resident + (_CUDA_ON_HOST if on_device else 0)


def program_file_bytes() -> int:
    """How many bytes of a process are pages of programs and libraries, which all processes share."""
    return _known(_USUAL).files


@functools.cache
def _known(sampler: str) -> ProcessMemory:
    name = f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    file = cache_folder() / f"process-{sampler}.json"
    try:
        found = ProcessMemory.model_validate_json(read_document(file))
        if found.measured_on == name:
            return found
    except (OSError, ValueError, ValidationError):
        pass
    try:
        resident, files, compiled = _measured(sampler)
        if compiled:
            # Compiling takes memory: another process finds the kernels.
            resident, files, _ = min((resident, files, compiled), _measured(sampler))
    except (OSError, ValueError, subprocess.SubprocessError):
        return ProcessMemory(resident=_STATED, files=0, measured_on=None)
    found = ProcessMemory(resident=resident, files=files, measured_on=name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, found.model_dump_json(indent=2))
    except OSError:
        # The next process measures it again.
        return found
    return found


def _measured(sampler: str) -> tuple[int, int, int]:
    """What a child process has after training a tiny graph, how much of it are pages of files, and how many kernels it
    had to compile.
    """
    child = start_python(["-m", __name__, sampler], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with child:
        try:
            said, _ = child.communicate(timeout=_TIMEOUT)
        finally:
            child.kill()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, child.args)
    resident, files, compiled = map(int, said.split()[-3:])
    return resident, files, compiled


def main(sampler: str = _USUAL) -> None:
    """Train two epochs on a ring of 64 vertices, and multiply matrices of usual widths."""
    # Who only asks what was measured need not import training.
    from penstock.train.assembly import session_of
    from penstock.train.execution_modes import choose_execution
    from penstock.train.loop import Loop
    from penstock.train.run_context import run_context
    from penstock.train.run_files.checkpoints import TrainState
    from penstock.train.run_files.run_folder import RunFolder

    count = 64
    indptr, indices = np.arange(0, 2 * count + 1, 2), np.arange(2 * count, dtype=np.int32) // 2
    fields: dict[str, Array] = {"x": np.ones((count, 4), np.float32), "y": np.arange(count) % 2}
    splits = {"train": np.arange(32), "val": np.arange(32, 64)}
    graph = Graph({"node": NodeSet(count, fields, splits)}, {("node", "to", "node"): EdgeSet(indptr, indices)}, "ring")
    with tempfile.TemporaryDirectory() as folder:
        given = {"epochs": 2, "hidden": 8, "device": "cpu", "run": str(Path(folder) / "run")}
        job = make_job(
            {**given, "threads": default_threads(), "sampler": sampler, **_TINY.get(sampler, {"fanouts": [2, 2]})}
        )
        with run_context(job):
            session = session_of(job, torch.device("cpu"), graph)
            session.execution = choose_execution(session, None)
            with closing(RunFolder.create(job, graph.name, False)) as run:
                Loop(session, run, TrainState(), SILENT).run(lambda: False)
            for rows, width in _PRODUCTS:
                x, weight = torch.ones(rows, width, requires_grad=True), torch.ones(width, width, requires_grad=True)
                torch.nn.functional.linear(x, weight).sum().backward()  # type: ignore[no-untyped-call]
    print(round(resident_mb() * (1 << 20)), round(file_mb() * (1 << 20)), compilation.begun)


if __name__ == "__main__":
    main(*sys.argv[1:])
