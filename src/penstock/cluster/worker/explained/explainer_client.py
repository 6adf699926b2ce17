"""The explainer as its worker sees it: started when it is needed, watched, and replaced when it is lost or silent."""

import os
import selectors
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from penstock.cluster.worker.explained import explainer_process
from penstock.cluster.worker.explained.explainer_process import Frame, encoded, read_frame
from penstock.errors import PenstockError, known_code
from penstock.graph.arrays import Array
from penstock.processes import start_python

ARGUMENTS = ["-m", explainer_process.__name__]
"""Python's arguments for an explainer process."""
_TRIES = 5
"""Explainers in a row that may be lost with one explanation."""
_LOOK = 0.5
"""Seconds between two checks whether the explanation is still wanted."""


class ExplainerLost(Exception):  # noqa: N818
    """The process ended or was silent for too long."""


class ExplainerClient:
    """Requests explanations, one at a time. `about` describes the model, and is sent to every new process."""

    def __init__(self, about: dict[str, Any], patience: float, start_patience: float) -> None:
        """An explainer that is silent for `patience` seconds, or for `start_patience` at its start, is replaced.

        The next one may be silent for twice as long, and so on.
        """
        self._about, self._patience, self._start_patience = about, patience, start_patience
        self._process: subprocess.Popen[bytes] | None = None
        self._closed, self._using = threading.Event(), threading.Lock()
        self._longer = 1.0
        """The factor of the patience."""
        self.lost = 0
        """The number of explainers that were replaced."""

    def prepare(self) -> None:
        """Start a process, so that the first request need not wait for it; one that is lost is replaced at the next
        request.
        """
        with self._using:
            try:
                if self._process is None:
                    self._start()
            except (ExplainerLost, OSError):
                self._end()

    def ask(self, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> Frame:
        """The answer to one request, however many processes that takes."""
        with self._using:
            return self._answer(encoded(document, arrays))

    def _answer(self, message: bytes) -> Frame:
        for lost in range(_TRIES):
            # On a busy machine a process of low priority may be silent for long: the next one is given more time.
            self._longer = 2.0**lost
            try:
                return self._asked(message)
            except (ExplainerLost, OSError):
                self._end()
                if self._closed.is_set():
                    raise PenstockError("The explainer was closed.", code="closed") from None
                self.lost += 1
        raise PenstockError(
            f"The explainer was lost {_TRIES} times in a row: look at the worker's log, and give its machine more"
            " memory if that did not suffice.",
            code="external-failure",
        )

    def close(self) -> None:
        """End the process; a request in progress fails."""
        self._closed.set()
        if (process := self._process) is not None:
            process.kill()
        # Threads that read or write the process's pipes must stop first.
        with self._using:
            self._end()

    def open(self) -> None:
        """Allow requests again after `close`."""
        self._closed.clear()

    @property
    def pid(self) -> int | None:
        """The process's number, while there is one."""
        return None if self._process is None else self._process.pid

    def _asked(self, message: bytes) -> Frame:
        if self._process is None:
            self._start()
        self._write(message, self._patience)
        while True:
            answer = read_frame(lambda size: self._read(size, self._patience))
            if "error" in answer.document:
                said = answer.document
                raise PenstockError(str(said["error"]), code=known_code(str(said.get("code"))))
            if "alive" not in answer.document:
                return answer

    def _start(self) -> None:
        # Its standard input closes with this process.
        self._process = start_python(ARGUMENTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._write(encoded(self._about, {}), self._start_patience)
        read_frame(lambda size: self._read(size, self._start_patience))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _read(self, size: int, patience: float) -> bytes:
        process, pieces = self._running(), list[bytes]()
        assert process.stdout is not None
        while size:
            self._wait(process.stdout, selectors.EVENT_READ, patience)
            piece = os.read(process.stdout.fileno(), min(size, 1 << 20))
            if not piece:
                raise ExplainerLost
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _write(self, data: bytes, patience: float) -> None:
        process, left = self._running(), memoryview(data)
        assert process.stdin is not None
        while left:
            self._wait(process.stdin, selectors.EVENT_WRITE, patience)
            left = left[os.write(process.stdin.fileno(), left[: 1 << 16]) :]

    def _wait(self, pipe: Any, event: int, patience: float) -> None:
        """Wait until the pipe is ready; checks from time to time whether the explainer was closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, event)
            waited, patience = 0.0, patience * self._longer
            while not selector.select(min(_LOOK, patience)):
                waited += min(_LOOK, patience)
                if waited >= patience or self._closed.is_set():
                    raise ExplainerLost

    def _running(self) -> "subprocess.Popen[bytes]":
        process = self._process
        if process is None or self._closed.is_set():
            raise ExplainerLost
        return process
