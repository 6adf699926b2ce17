"""What a worker without records remembers of the last step, in case the worker that writes them is lost."""

import json
from typing import Any

from penstock.graph.input_files import open_lines
from penstock.train.events import KeptEvents
from penstock.train.records import Events, NoRecords, Records
from penstock.train.run_folder import METRICS, RunFolder
from penstock.train.train_state import TrainState


class LastRecords(NoRecords):
    """The first worker takes part in a step when it has written what the one before gave: that one is enough."""

    def __init__(self, traced: int = 0) -> None:
        """Keep the stages' work on so many batches, as far as there is room."""
        self.metrics: list[dict[str, Any]] = []
        self._traced, self._events = traced, KeptEvents(traced, 0.0)

    def events(self, batches: int, began: float) -> Events:
        """What the stages do in the first batches of this round; a new round begins anew."""
        self._events = KeptEvents(self._traced, began)
        return self._events

    def spans(self) -> list[list[int]]:
        """What was kept of the stages' work; see `KeptEvents.spans`."""
        return self._events.spans

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Instead of those of earlier steps."""
        self.metrics = [*(each for each in self.metrics if each["step"] == record["step"]), record]


def mend_metrics(records: Records, folder: RunFolder, train_state: TrainState, last: list[dict[str, Any]]) -> None:
    """Let the folder have what belongs to a train state: not what will happen again, but what another remembers."""
    folder.forget_metrics_after(train_state.step)
    path = folder.path / METRICS
    lines = list[str]()
    if path.exists():
        with open_lines(path) as file:
            lines = file.read().splitlines()
    known = [(record.get("kind"), record.get("step")) for record in map(json.loads, lines)]
    if train_state.ending:
        # The lost worker may have ended the epoch that the others have not.
        ended = "epoch", train_state.step
        folder.replace_metrics(line for line, name in zip(lines, known, strict=True) if name != ended)
    for record in last:
        if (record["kind"], record["step"]) not in known:
            records.append_metrics(record)


def stands_at_best(train_state: TrainState) -> bool:
    """Whether no step was done since the best model: the lost worker may not have kept it yet."""
    return train_state.best_epoch == train_state.epoch and train_state.batch == 0 and not train_state.ending
