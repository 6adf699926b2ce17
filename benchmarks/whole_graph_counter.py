"""A task of a run on the whole graph that counts its processor seconds, for `whole_graph_processor.py`.

The variable `PENSTOCK_COUNTS` names a folder. There the task writes a line for each step: processor seconds of the
process so far by thread, messages and bytes of rows that it has sent. Everything else of the task is as it is.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from penstock.cluster.tasks.__main__ import main
from penstock.train.whole.shared.steps import ExchangedStep

VARIABLE = "PENSTOCK_COUNTS"


def count_steps(folder: Path) -> None:
    """Write a line when a step begins."""
    step = ExchangedStep.exchanged

    def counted(steps: Any, planned: Any, prepared: Any) -> float:
        workers = steps.workers
        line = json.dumps({"epoch": planned.key.epoch, "threads": _seconds(), **_rows_sent(workers)})
        with (folder / f"{workers.rank}.jsonl").open("a") as file:
            file.write(line + "\n")
        return step(steps, planned, prepared)

    ExchangedStep.exchanged = counted  # type: ignore[method-assign]


def _seconds() -> dict[str, float]:
    """By kind of thread."""
    names = {each.native_id: each.name for each in threading.enumerate()}
    found: dict[str, float] = {}
    for thread in Path("/proc/self/task").iterdir():
        name = names.get(int(thread.name), "others")
        kind = "handlers" if name.startswith("wire-") and name[-1].isdigit() and name.count("-") > 2 else name
        kind = "wire" if kind.startswith("wire-") else kind
        try:
            spent = int((thread / "schedstat").read_text().split()[0]) / 1e9
        except FileNotFoundError:
            continue
        found[kind] = found.get(kind, 0.0) + spent
    return found


def _rows_sent(workers: Any) -> dict[str, int]:
    flows = [each for each in workers._member.endpoint.flows() if each.name.endswith("/rows")]
    asked = [each for each in flows if each.name.startswith(f"worker-{workers.rank}>")]
    return {
        "messages": sum(each.sent_messages for each in asked),
        "answers": sum(each.sent_messages for each in flows) - sum(each.sent_messages for each in asked),
        "bytes": sum(each.sent_bytes for each in asked),
    }


if __name__ == "__main__":
    count_steps(Path(os.environ[VARIABLE]))
    status = main()
    sys.stderr.flush()
    # Threads of libraries may still wait for peers that are gone.
    os._exit(status)
