"""The folder of a service: its database, its token, its address and what its jobs write."""

import fcntl
import grp
import json
import os
import pwd
import secrets
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple
from urllib.parse import urlencode

from penstock.errors import PenstockError, known_code
from penstock.graph.files import make_private_folder, open_lock, open_private, read_document, write_whole, writing
from penstock.graph.object_folders import address_of, is_remote
from penstock.service.database import FINAL, STATES
from penstock.train.job import read_job_fields

FORMAT, VERSION = "penstock-queue", 1
_TOKEN_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ROOT, _NOBODY = 0, 65534
"""Owners of folders above a service's that are trusted: root, and the uid of unmapped users."""


class Address(NamedTuple):
    """The address at which a service listens."""

    host: str
    port: int


def default_folder() -> Path:
    """The folder of PENSTOCK_QUEUE, or the user's own."""
    named = os.environ.get("PENSTOCK_QUEUE")
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "penstock" / "queue"


class ServiceFolder:
    """The files of one service. Only its owner may write into the folder, or replace it."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.database = self.path / "queue.sqlite"
        self._token = self.path / "token"
        self._address = self.path / "service.json"
        self._lock = self.path / ".lock"
        self._held: int | None = None

    def hold(self) -> None:
        """Make the folder if needed, and lock it against other services until `close`."""
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            make_private_folder(self.path)
            self._require_own()
            make_private_folder(self.path / "jobs")
        try:
            self._held = open_lock(self._lock)
        except BlockingIOError:
            raise PenstockError(
                f"A service already runs on {self.path}: use that one, stop it, or name another folder with --folder.",
                code="in-use",
            ) from None
        # A killed service leaves a file with an address at which another process may listen by now.
        self._address.unlink(missing_ok=True)

    @property
    def is_held(self) -> bool:
        """Whether this process holds the folder."""
        return self._held is not None

    def close(self) -> None:
        """Release the folder for other services."""
        if self._held is not None:
            self._address.unlink(missing_ok=True)
            os.close(self._held)
            self._held = None

    def publish(self, address: Address) -> None:
        """Publish the service's address for clients."""
        fields = {"format": FORMAT, "version": VERSION, "host": address.host, "port": address.port}
        write_whole(self._address, json.dumps(fields) + "\n")

    def address(self) -> Address:
        """Where the service of this folder listens; an error if none runs.

        A client checks the lock, not only the file: after a crash another process may listen at the address that the
        file still names, and must not be sent the token.
        """
        self._require_own()
        if not self._is_served():
            raise PenstockError(
                f"No service runs on {self.path}: start one with `penstock serve`, or name its folder with --folder or"
                " PENSTOCK_QUEUE.",
                code="not-available",
            )
        try:
            found = json.loads(read_document(self._address))
            return Address(str(found["host"]), int(found["port"]))
        except FileNotFoundError:
            raise PenstockError(
                f"The service on {self.path} is only just starting: try again in a moment.", code="not-available"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PenstockError(
                f"{self._address} cannot be read ({error}): start the service again.", code="damaged-file"
            ) from None

    def token(self) -> str:
        """The secret by which clients authenticate. Only the folder's owner can read it."""
        self._require_own()
        try:
            return read_document(self._token).strip()
        except (OSError, ValueError) as error:
            raise PenstockError(
                f"The token {self._token} cannot be read ({error}): only the owner of the service can.",
                code="not-permitted",
            ) from None

    def make_token(self) -> str:
        """The token, made if there is none. One that others could have read is replaced."""
        with suppress(FileNotFoundError):
            if self._token.lstat().st_mode & _OTHERS or not read_document(self._token).strip():
                self._token.unlink()
        with writing(self._token), suppress(FileExistsError):
            descriptor = open_private(self._token, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        return self.token()

    def job(self, number: int) -> Path:
        """The folder of a job; its run is in it unless the job names another."""
        return self.path / "jobs" / str(number)

    def log(self, number: int) -> Path:
        """What a job's processes have printed."""
        return self.job(number) / "log.txt"

    def _require_own(self) -> None:
        """Refuse a folder in which, or above which, other users can write.

        Such a user could publish an address of their own, to which clients would send the token, or a database of their
        own, whose jobs would be run.
        """
        for place in (self.path, *self.path.parents):
            try:
                found = place.stat()
            except FileNotFoundError:
                continue
            own = place == self.path
            if found.st_uid != os.geteuid() and (own or found.st_uid not in (_ROOT, _NOBODY)):
                raise PenstockError(
                    f"{place} belongs to {_name_of(found.st_uid)}, and only a queue in a folder of your own can be"
                    " trusted: name another with --folder or PENSTOCK_QUEUE.",
                    code="not-permitted",
                )
            # In a world-writable folder such as /tmp, the sticky bit protects each user's entries from the others.
            if _others_write(found) and (own or not found.st_mode & stat.S_ISVTX):
                raise PenstockError(
                    f"Others can write to {place}, and so could answer in the place of the service: take that right"
                    f" from them (chmod go-w {place}), or name another folder with --folder or PENSTOCK_QUEUE.",
                    code="not-permitted",
                )

    def _is_served(self) -> bool:
        try:
            descriptor = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def _others_write(found: os.stat_result) -> bool:
    """Whether users other than the owner may write to a folder. A group with only this user counts as none."""
    if not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    try:
        group, user = grp.getgrgid(found.st_gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return True
    return group.gr_name != user.pw_name or found.st_gid != user.pw_gid or bool(set(group.gr_mem) - {user.pw_name})


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


_PATIENCE_S = 30.0
_PAUSE_S = 0.2
_PATHS = ("graph", "clusters", "run")
"""Job fields that name files or folders; `clusters` may be a number instead."""
_CODE = ("module", "loss", "metrics", "callbacks")
"""Job fields that name files with code."""


class Queue:
    """The jobs of a running service (`penstock serve`).

    `folder` is the service's: that of PENSTOCK_QUEUE, or the user's own, by default.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = ServiceFolder(default_folder() if folder is None else Path(folder))

    def submit(
        self,
        job: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        sweep: Mapping[str, Sequence[Any]] | None = None,
        priority: int = 0,
        name: str = "",
        **fields: Any,
    ) -> list[int]:
        """Queue a job, given as a file, as a mapping or as `fields` (docs/job.md); returns the numbers of the queued
        jobs.

        `fields` replace those of a file or a mapping. `sweep` gives fields several values, and every combination
        becomes a job. Relative paths are those of this process. A higher `priority` goes first. In lists a job is
        called `name`, or after its graph, its model and the fields that were replaced or swept.
        """
        if job is None and not fields:
            raise PenstockError("There is nothing to queue: give a job file, a mapping or fields.", code="missing-data")
        if not isinstance(job, (str, os.PathLike, Mapping, NoneType)):
            raise PenstockError(
                f"A job is a file or a mapping, and {type(job).__name__} was given: give one of them, or fields.",
                code="invalid-value",
            )
        if job is None:
            given, changes = fields, dict[str, Any]()
        else:
            given, changes = dict(job) if isinstance(job, Mapping) else read_job_fields(Path(job)), fields
        sent = {
            "job": findable(given),
            "changes": findable(changes),
            "sweep": _listed(sweep or {}),
            "priority": priority,
            "name": name,
        }
        return [each["id"] for each in self._ask("POST", "/api/jobs", sent)["jobs"]]

    def expected_ends(self, numbers: Sequence[int], patience_s: float = 3.0) -> dict[int, float]:
        """By number, when jobs are expected to end, in wall-clock seconds (`time.time`); without those of which nothing
        is known. New jobs are forecast first, for which it waits so many seconds at most.
        """
        until = time.monotonic() + patience_s
        while True:
            found = {number: self.job(number) for number in numbers}
            pending = any(each["state"] in ("submitted", "forecasting") for each in found.values())
            if not pending or time.monotonic() > until:
                return {number: job["expected_end"] for number, job in found.items() if job["expected_end"] is not None}
            time.sleep(_PAUSE_S)

    def jobs(self, *states: str, limit: int = 100, before: int | None = None) -> list[dict[str, Any]]:
        """The newest jobs, only those in `states` if given; `before` continues a list."""
        found: list[dict[str, Any]] = self.listed(*states, limit=limit, before=before)["jobs"]
        return found

    def listed(self, *states: str, limit: int = 100, before: int | None = None) -> dict[str, Any]:
        """The same with `counts`, the number of jobs in each state, and `next`, where the list continues."""
        for state in states:
            if state not in STATES:
                raise PenstockError(f"{state!r} is not a state of a job: use {', '.join(STATES)}.", code="unknown-name")
        asked = [("state", state) for state in states] + [("limit", str(limit))]
        asked += [] if before is None else [("before", str(before))]
        return self._ask("GET", f"/api/jobs?{urlencode(asked)}")

    def job(self, number: int) -> dict[str, Any]:
        """One job with its document and, if it has ended, its result."""
        return self._ask("GET", f"/api/jobs/{number}")

    def logs(self, number: int, follow: bool = False) -> Iterator[str]:
        """What a job has printed, in pieces; with `follow` until it has ended."""
        offset = 0
        while True:
            answer = self._ask("GET", f"/api/jobs/{number}/log?offset={offset}")
            if answer["text"]:
                yield answer["text"]
            elif answer["final"] or not follow:
                return
            else:
                time.sleep(_PAUSE_S)
            offset = answer["next"]

    def cancel(self, number: int) -> dict[str, Any]:
        """Cancel a job; one that runs writes a checkpoint first."""
        return self._ask("POST", f"/api/jobs/{number}/cancel")

    def retry(self, number: int) -> dict[str, Any]:
        """Retry a job that failed or was cancelled; it continues from its newest checkpoint, if it has one."""
        return self._ask("POST", f"/api/jobs/{number}/retry")

    def wait(self, *given: int | Sequence[int]) -> list[dict[str, Any]]:
        """Wait until all of the given jobs have ended, failed or been cancelled; returns them."""
        numbers = [number for each in given for number in (each if isinstance(each, Sequence) else [each])]
        for number in numbers:
            while self.job(number)["state"] not in FINAL:
                time.sleep(_PAUSE_S)
        return [self.job(number) for number in numbers]

    def devices(self) -> dict[str, Any]:
        """The service's devices with the jobs on them, and its policy."""
        return self._ask("GET", "/api/devices")

    def drain(self) -> int:
        """Have the service accept no more jobs and end when the running ones have; returns how many those are."""
        return int(self._ask("POST", "/api/drain")["running"])

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        host, port = self._folder.address()
        shown = f"[{host}]" if ":" in host else host
        request = urllib.request.Request(f"http://{shown}:{port}{path}", method=method)
        request.add_header("Authorization", f"Bearer {self._folder.token()}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body, default=_plain).encode()
        # The environment's proxies are for remote hosts.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_PATIENCE_S) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise PenstockError(
                f"The service at {shown}:{port} does not answer ({reason}): see whether it still runs.",
                code="peer-lost",
            ) from None


def _listed(sweep: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The values of swept fields as lists."""
    if not isinstance(sweep, Mapping) or any(isinstance(each, (str, int, float)) for each in sweep.values()):
        raise PenstockError(
            "A sweep is a mapping of fields to several values each: write sweep={'lr': [0.01, 0.003]}.",
            code="invalid-value",
        )
    return {field: list(values) for field, values in sweep.items()}


def _plain(value: Any) -> Any:
    """A NumPy or torch number as a Python one, and a path as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise PenstockError(
        f"A job's fields are numbers, texts, lists and mappings, and there is a {type(value).__name__} among them: a"
        " graph is named by its path.",
        code="invalid-value",
    )


def findable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A job's fields with absolute paths; names of data sets stay unchanged."""
    found = dict(fields)
    for name in _PATHS:
        value = found.get(name)
        if not isinstance(value, (str, os.PathLike)) or (name == "clusters" and os.fsdecode(value).isdecimal()):
            continue
        if name != "graph" or Path(value).expanduser().exists() or "/" in os.fsdecode(value):
            found[name] = address_of(value) if is_remote(value) else str(Path(value).expanduser().resolve())
    for name in _CODE:
        code = found.get(name)
        if isinstance(code, str):
            found[name] = ",".join(map(_findable_code, code.split(",")))
        elif isinstance(code, list):
            found[name] = [_findable_code(each) if isinstance(each, str) else each for each in code]
    return found


def _findable_code(location: str) -> str:
    place, colon, attribute = location.strip().rpartition(":")
    return f"{Path(place).resolve()}{colon}{attribute}" if place.endswith(".py") else location


def _refusal(error: urllib.error.HTTPError) -> PenstockError:
    try:
        fields = json.loads(error.read())
        return PenstockError(str(fields["error"]), code=known_code(fields["code"]))
    except (OSError, ValueError, KeyError, TypeError):
        return PenstockError(f"The service answered {error.code} {error.reason}.", code="malformed-message")
