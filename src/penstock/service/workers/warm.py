"""A program that imports everything once and forks processes, which then start at once.

It never uses a GPU itself, since a process that has done so cannot be forked, and it has one thread: a fork lacks the
other threads, and would deadlock on locks that they held.
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from penstock.graph.files import PRIVATE_UMASK

_WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Settings that keep OpenBLAS, of NumPy and SciPy, and jemalloc, of Arrow, from starting threads
when they are loaded.
"""
LONGEST = 64 << 10
"""Bytes of a request or an answer that are read at once; each is a line."""


def main() -> None:
    """Fork on request until the service is gone; the only argument is the number of the socket."""
    import_everything()
    run(int(sys.argv[1]))


def run(requests: int) -> None:
    """Fork on request through the socket of this number, until the service is gone."""
    # Forks are not waited for: they report how they ended themselves.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # The service handles Ctrl-C in its terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(PRIVATE_UMASK)
    # A service that is killed after a request leaves a fork that gets no task, and ends by itself.
    with suppress(ConnectionError):
        serve(socket.socket(fileno=requests))


def import_everything() -> None:
    """Import what tasks need, and load one kernel, which initialises Numba for all others."""
    with _libraries_start_no_threads():
        import numpy as np
        import pyarrow
        import scipy.linalg

        assert pyarrow and scipy.linalg
    from penstock.graph.hashing import unit_draws
    from penstock.service.workers.shared_jobs import PROGRAMS

    assert PROGRAMS
    unit_draws(np.uint64(0), 1)


@contextmanager
def _libraries_start_no_threads() -> Iterator[None]:
    """Libraries that are loaded within the context start no threads; later forks get the environment unchanged.

    torch, which is imported later, has a library of its own for products in training.
    """
    before = {name: os.environ.get(name) for name in _WITHOUT_THREADS}
    os.environ.update(_WITHOUT_THREADS)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def serve(requests: socket.socket) -> None:
    """Answer each request (the program to run and its environment, with its standard files and its pipe) with the id of
    a fork.
    """
    kernels = KernelsOfForks()
    while True:
        data, files, _, _ = socket.recv_fds(requests, LONGEST, 3)
        data += rest_of_line(requests, data)
        if not data.endswith(b"\n"):
            return
        kernels.load()
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become(json.loads(data), files, kernels)
        for file in files:
            os.close(file)
        requests.sendall(json.dumps({"pid": pid}).encode() + b"\n")


class KernelsOfForks:
    """The kernels that forks have used, which are loaded before the next fork: a fifth of a small job's work."""

    def __init__(self) -> None:
        from penstock.kernels import load_kept, used_kernels

        self._load_kept, self._used, self._known = load_kept, used_kernels, used_kernels()
        self._told, self._tell = os.pipe()
        for end in (self._told, self._tell):
            os.set_blocking(end, False)
        self._unread = b""

    def load(self) -> None:
        """Load the kernels that forks have told of since the last time."""
        with suppress(BlockingIOError):
            while read := os.read(self._told, LONGEST):
                self._unread += read
        *names, self._unread = self._unread.split(b"\n")
        for name in {name.decode(errors="replace") for name in names} - self._known:
            self._known.add(name)
            # What cannot be loaded is compiled by the job that needs it, which says what is wrong.
            with suppress(Exception):
                self._load_kept(name)

    def tell(self) -> None:
        """In a fork that ends: tell of the kernels that it used and that were not loaded before; as many as fit."""
        with suppress(BlockingIOError):
            for name in sorted(self._used() - self._known):
                os.write(self._tell, name.encode() + b"\n")


def rest_of_line(stream: socket.socket, read: bytes) -> bytes:
    """The rest of a line that was partly read; incomplete if the other side is gone."""
    rest = b""
    while not (read + rest).endswith(b"\n"):
        more = stream.recv(LONGEST)
        if not more:
            break
        rest += more
    return rest


def _become(request: dict[str, Any], files: list[int], kernels: KernelsOfForks) -> NoReturn:
    """Run a request in a fork: `files` are its input, its log and its report pipe."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        entry, log, reports = files
        for own, given in enumerate((entry, log, log)):
            os.dup2(given, own)
        os.close(entry)
        os.close(log)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        faulthandler.enable()
        from penstock.service.workers.shared_jobs import PROGRAMS

        status = PROGRAMS[request["program"]](reports)
        kernels.tell()
    except BaseException:
        traceback.print_exc()
    finally:
        # The run has written what it has to: inherited threads and exit handlers are not waited for.
        os._exit(status)


if __name__ == "__main__":
    main()
