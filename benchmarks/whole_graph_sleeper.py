"""A task of a run whose bins take as long as a plan predicts: after their real arithmetic the worker sleeps the rest.

`whole_graph_hosts.py` starts it in place of `penstock.cluster.tasks`. Everything else of the run is as it is: plans,
messages over the wire, the order of bins, sums, and weights. The variable `PENSTOCK_BIN_SECONDS` names a JSON file with
the seconds of a bin for each layer and direction: of the bin itself, of each row, and of each edge.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cluster.tasks.__main__ import main
from penstock.train.whole.passes import LayerPasses

VARIABLE = "PENSTOCK_BIN_SECONDS"


def sleep_as_predicted(seconds: dict[str, list[list[float]]]) -> None:
    """Let every pass over a bin take so long."""
    for direction in ("forward", "backward"):
        setattr(LayerPasses, direction, _padded(getattr(LayerPasses, direction), seconds[direction]))


def _padded(compute: Callable[..., Any], lines: list[list[float]]) -> Callable[..., Any]:
    def padded(passes: LayerPasses, number: int, work: Any, *more: Any) -> Any:
        began = time.perf_counter()
        found = compute(passes, number, work, *more)
        fixed, row, edge = lines[number]
        left = fixed + row * work.num_rows + edge * work.block.num_edges - (time.perf_counter() - began)
        if left > 0:
            time.sleep(left)
        return found

    return padded


if __name__ == "__main__":
    sleep_as_predicted(json.loads(Path(os.environ[VARIABLE]).read_text()))
    status = main()
    sys.stderr.flush()
    # Threads of libraries may still wait for peers that are gone.
    os._exit(status)
