"""The client of a queue: `ps.Queue`, also used by the commands. It speaks to a service over HTTP."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any
from urllib.parse import urlencode

from penstock.errors import PenstockError, known_code
from penstock.graph.object_folders import address_of, is_remote
from penstock.service.database import FINAL, STATES
from penstock.service.folder import ServiceFolder, default_folder
from penstock.train.job import read_job_fields

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
