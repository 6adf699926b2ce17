"""What a run on a GPU compiles when it starts."""

import json
import os

import pytest

from penstock.processes import start_python
from training_graphs import community_graph

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]

PROGRAM = """
import json, sys, threading
import triton
compiled = []
def note(*, src, metadata, metadata_group, times, cache_hit):
    if not cache_hit:
        compiled.append([threading.current_thread().name, src.fn.__name__])
triton.knobs.compilation.listener = note
import penstock as ps
given = json.loads(sys.argv[1])
result = ps.train(**given, progress=False).result
print(json.dumps([compiled, result["train_loss"]]))
"""
"""Trains, and prints which thread compiled which kernel."""


@pytest.mark.parametrize("fields", [{"model": "sage"}, {"model": "gat", "heads": 2}, {"sampler": "labor"}], ids=str)
def test_kernels_of_captured_steps_are_compiled_by_threads_before_they_are_launched(fields, tmp_path):
    community_graph().save(tmp_path / "graph")
    job = {"fanouts": [4, 3], "hidden": 16, "batch_size": 64, "epochs": 2, "device": "cuda", "capture": True, **fields}
    ends, kernels = [], {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "kernels")}
    for time in ("first", "second"):
        asked = json.dumps({"graph": str(tmp_path / "graph"), "run": str(tmp_path / time), **job})
        program = start_python(["-c", PROGRAM, asked], stdout=-1, text=True, env=kernels)
        ends.append(json.loads(program.communicate(timeout=300)[0].splitlines()[-1]))
    (compiled, loss), (again, same_loss) = ends
    assert len(compiled) > 10
    late = [kernel for thread, kernel in compiled if not thread.startswith("compile")]
    assert not late
    assert (again, same_loss) == ([], loss)
