"""What every stage did and when, as a trace for Perfetto."""

import json
import threading
import time
from pathlib import Path
from typing import Any

from penstock.graph.output_files import open_bytes, open_text, writing

_STAGES = ("seeds", "sample", "gather", "transfer", "compute", "forward", "exchange", "backward", "update")
_MOST_THREADS = 1000


class EventLog:
    """events.jsonl: a Chrome trace that Perfetto opens, written while the run goes on.

    The first line is `[`; each further line is one event and a comma. The format allows the closing bracket to be
    missing, so the file is valid at any moment.
    """

    def __init__(self, path: Path, recorded: int, batches: int, began: float) -> None:
        """Record the first `recorded` batches of epochs of `batches`, then every hundredth; `began` is time zero."""
        self._path = path
        with writing(path):
            _drop_unfinished_line(path)
            self._file = open_text(path, "a", 1 << 16)
        self._recorded, self._batches, self._began = recorded, batches, began
        self._lock = threading.Lock()
        self._named: set[int] = set()
        if self._file.tell() == 0:
            self._file.write("[\n")

    def record(self, stage: str, thread: int, start: float, end: float, item: Any) -> None:
        """A stage's work on one batch. Of a long run's batches only some are recorded."""
        epoch, batch = item.position
        if not self._is_recorded(epoch, batch):
            return
        fields = {
            "ts": self._micros(start),
            "dur": round((end - start) * 1e6),
            "args": {"epoch": epoch, "batch": batch},
        }
        with self._lock:
            lane = self._lane(stage, thread)
            self._write({"name": stage, "ph": "X", "pid": 1, "tid": lane, **fields})

    def memory(self, resident_mb: float) -> None:
        """A point of the memory curve."""
        with self._lock:
            args = {"rss_mb": round(resident_mb, 1)}
            self._write({"name": "memory", "ph": "C", "pid": 1, "ts": self._micros(time.perf_counter()), "args": args})
            with writing(self._path):
                self._file.flush()

    def close(self) -> None:
        """Write what is buffered and close the file."""
        with self._lock, writing(self._path):
            self._file.close()

    def _is_recorded(self, epoch: int, batch: int) -> bool:
        number = epoch * self._batches + batch
        return number < self._recorded or (self._recorded > 0 and number % 100 == 0)

    def _micros(self, moment: float) -> int:
        return round((moment - self._began) * 1e6)

    def _lane(self, stage: str, thread: int) -> int:
        """A number that is the same in a resumed run, which adds to the same trace."""
        lane = _STAGES.index(stage) * _MOST_THREADS + thread + 1
        if lane not in self._named:
            self._named.add(lane)
            name = {"name": f"{stage} {thread}"}
            self._write({"name": "thread_name", "ph": "M", "pid": 1, "tid": lane, "args": name})
        return lane

    def _write(self, event: dict[str, Any]) -> None:
        if not self._file.closed:
            with writing(self._path):
                self._file.write(json.dumps(event) + ",\n")


def _drop_unfinished_line(path: Path) -> None:
    """A process that was killed may have left half an event: what comes behind it would be lost with it."""
    if path.exists():
        with open_bytes(path, "r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
