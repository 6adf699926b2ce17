"""What a worker that writes no records remembers of the last step, should the one that writes them be lost before."""

import copy
import json
from typing import Any

from penstock.graph.atomic import write_whole
from penstock.train.records import NoRecords, Records
from penstock.train.run_folder import METRICS, RunFolder
from penstock.train.standing import Standing


class LastRecords(NoRecords):
    """The first worker takes part in a step when it has written what the one before gave: that one is enough."""

    def __init__(self) -> None:
        self._metrics: list[dict[str, Any]] = []
        self._best: dict[str, Any] | None = None
        self._best_step: int | None = None

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Instead of those of earlier steps."""
        self._metrics = [*(each for each in self._metrics if each["step"] == record["step"]), record]

    def due(self, step: int) -> bool:
        """Never; but a step is over, and with the next one what was best before it is written."""
        if self._best_step is None:
            self._best_step = step
        elif self._best_step < step:
            self._best = None
        return False

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        """The model of the epoch that has just ended."""
        self._best, self._best_step = {"epoch": epoch, "weights": copy.deepcopy(weights)}, None

    def last(self) -> dict[str, Any]:
        """For the worker that writes instead of the lost one."""
        return {"metrics": self._metrics, "best": self._best}


def mend_records(records: Records, folder: RunFolder, standing: Standing, last: dict[str, Any] | None) -> None:
    """Let the folder have what belongs to a standing: not what will happen again, but what another remembers."""
    folder.forget_metrics_after(standing.step)
    path = folder.path / METRICS
    lines = path.read_text().splitlines() if path.exists() else []
    known = [(record.get("kind"), record.get("step")) for record in map(json.loads, lines)]
    if standing.ending:
        # The lost worker may have ended the epoch that the others have not.
        ended = "epoch", standing.step
        write_whole(path, "".join(f"{line}\n" for line, name in zip(lines, known, strict=True) if name != ended))
    if last is None:
        return
    for record in last["metrics"]:
        if (record["kind"], record["step"]) not in known:
            records.append_metrics(record)
    if last["best"] is not None:
        records.save_best(int(last["best"]["epoch"]), last["best"]["weights"])
