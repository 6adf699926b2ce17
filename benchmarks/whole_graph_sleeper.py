"""A task of a run whose bins take as long as a plan predicts: after what it really does for one the worker sleeps.

`whole_graph_hosts.py` starts it in place of `penstock.cluster.tasks`. Everything else of the run is as it is: plans,
messages over the wire, the order of bins, sums, and weights. The variable `PENSTOCK_BIN_SECONDS` names a JSON file with
the seconds of a bin for each layer and direction: of the bin itself, and of each row, edge and input.

From the first bin on the task goes before others on this machine's processors, of which it needs little: waiting for
one would count as computing.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from penstock.cluster.tasks.__main__ import main
from penstock.plan.workloads.whole_section import CostLine
from penstock.train.whole.shared.passes import BackwardPass, ForwardPass

VARIABLE = "PENSTOCK_BIN_SECONDS"
_PRIORITY = -10


def sleep_as_predicted(seconds: dict[str, list[list[float]]]) -> None:
    """Let every pass over a bin take so long, with the rows that it reads and the gradients that it adds."""
    for which, direction in ((ForwardPass, "forward"), (BackwardPass, "backward")):
        which._compute = _padded(which._compute, seconds[direction])  # type: ignore[attr-defined]


def _hurry() -> None:
    """Raise the priority of all threads that there are."""
    for thread in Path("/proc/self/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), _PRIORITY)


def _padded(compute: Callable[..., None], lines: list[list[float]]) -> Callable[..., None]:
    hurried: list[bool] = []

    def padded(passes: Any, task: Any) -> None:
        if not hurried:
            hurried.append(True)
            _hurry()
        began = time.perf_counter()
        compute(passes, task)
        taken = CostLine(*lines[task.layer]).seconds(task.num_rows, task.block.num_edges, task.num_inputs)
        left = taken - (time.perf_counter() - began)
        if left > 0:
            time.sleep(left)

    return padded


def run_sleeping() -> NoReturn:
    """The whole of the program."""
    sleep_as_predicted(json.loads(Path(os.environ[VARIABLE]).read_text()))
    status = main()
    sys.stderr.flush()
    # Threads of libraries may still wait for peers that are gone.
    os._exit(status)


if __name__ == "__main__":
    run_sleeping()
