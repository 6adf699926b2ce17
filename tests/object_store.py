"""An object store for tests: folders of this machine under the scheme `s3`, with faults on request."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

from pyarrow import fs

from penstock import cache_folders


class Faults:
    """Errors that requests get whose path holds `word`, or `any`: `times` times, after `after` of them went well."""

    def __init__(self) -> None:
        self.word, self.after, self.times, self.error = "", 0, 0, OSError("NETWORK_CONNECTION")
        self.sent: list[str] = []
        self.fetched: list[str] = []

    def check(self, path: str) -> None:
        """Raise the error, if this request is one that gets it."""
        if not self.word or (self.word != "any" and self.word not in path) or self.times == 0:
            return
        if self.after > 0:
            self.after -= 1
            return
        self.times -= 1
        raise self.error


class Store:
    """Buckets that are folders below one of this machine."""

    def __init__(self, root, faults: Faults) -> None:
        self.root, self.faults = root, faults
        self._system = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())

    def get_file_info(self, what):
        """Listings; folders are no objects."""
        self.faults.check("list")
        return self._system.get_file_info(what)

    def open_input_stream(self, path):
        """An object, for reading."""
        self.faults.check(f"read {path}")
        self.faults.fetched.append(path)
        return self._system.open_input_stream(path)

    def open_output_stream(self, path):
        """An object, for writing: it has its content when the stream is closed."""
        self.faults.check(f"write {path}")
        self.faults.sent.append(path)
        self._system.create_dir(path.rpartition("/")[0], recursive=True)
        return self._system.open_output_stream(path)

    def delete_file(self, path):
        """Remove an object."""
        self.faults.check(f"delete {path}")
        self._system.delete_file(path)


def use_cache(monkeypatch, folder) -> None:
    """Keep copies in a folder from now on, as another machine would."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    monkeypatch.setattr(cache_folders, "_held", {})


# A server that speaks S3 over HTTP.

MOTO = os.environ.get("PENSTOCK_TEST_MOTO", sys.executable)
"""A Python that has moto's server; the one of the tests where it is not set."""
HAS_MOTO = sys.executable != MOTO or all(map(importlib.util.find_spec, ("moto", "flask", "flask_cors")))


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def s3_server():
    """The port of an S3 server."""
    port = free_port()
    words = [MOTO, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            assert process.poll() is None, "the S3 server has ended"
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()
