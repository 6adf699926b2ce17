"""What is submitted, checked before it is queued: a job's fields, the paths that it names, the code that it brings."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.graph.document_sweep import Point, Sweep, fields_of, points_of, said, with_point
from penstock.train.job import Job, make_job

MOST_BYTES = 64 << 10
"""Bytes of one job, as JSON."""
_NEVER_MATTERS = ("lr", "embedding_lr", "run")
"""Fields that change neither the memory of a job nor its time."""
_NAMED_ANYWAY = ("graph", "model", "module", "run")
"""Fields that are left out of what a job's name says of its values."""
_LONGEST_NAME = 100
"""Characters of a name that its user gave."""
_LONGEST_VALUES = 200
"""Characters of a name that say the values of fields."""


@dataclass(frozen=True)
class SubmissionRules:
    """What the owner of a service allows and what jobs get that leave it open."""

    allowed: tuple[Path, ...]
    """Folders, without links in their paths, whose contents jobs may name."""
    modules: bool
    """Whether code that a job names (`module`) is run."""
    threads: int
    """Threads of a job that does not say how many; a fixed number, as it decides how sums are rounded."""
    reserved: Path
    """The service's own folder, in which no job may choose its run: others would find theirs taken."""
    kinds: tuple[str, ...]
    """What computes here: cpu, or cuda and cpu. A job that does not say gets the first."""


def swept(fields: Mapping[str, Any], sweeps: Sequence[Sweep]) -> list[tuple[Point, dict[str, Any]]]:
    """The combinations of the sweeps' values, each with the job's fields that it gives; one where nothing is swept."""
    if not sweeps:
        return [({}, dict(fields))]
    known = fields_of(Job)
    try:
        return [(point, with_point(fields, point, known)) for point in points_of(sweeps)]
    except RecursionError:
        raise too_deep() from None


def too_deep() -> PenstockError:
    """The refusal of lists in lists that nobody could walk."""
    return PenstockError("The job's lists and mappings are nested too deeply: write it plainly.", code="invalid-value")


def accepted_job(
    name: str, differing: Mapping[str, Any], fields: Mapping[str, Any], priority: int, rules: SubmissionRules
) -> dict[str, Any]:
    """The columns of a new job in the database; refused where its fields are wrong or name what is not allowed.

    It is called `name`, or after its graph and its model, and after the values of fields by which it differs.
    """
    job = make_job(dict(fields))
    if len(json.dumps(dict(fields))) > MOST_BYTES:
        raise PenstockError(f"The job has more than {MOST_BYTES:,} bytes: submit less.", code="too-large")
    kind = _kind(job, rules)
    changes: dict[str, Any] = {
        "graph": _graph(job.graph, rules),
        "partition": None if job.partition is None else str(allowed_path(job.partition, rules.allowed)),
        "threads": job.threads or rules.threads,
        "device": kind,
    }
    if job.own_code and not rules.modules:
        named = ", ".join(name for names in job.own_code.values() for name in names)
        raise PenstockError(
            f"The job brings code of its own ({named}), and this service runs none: start it with"
            " --allow-modules if you trust everybody who has its token.",
            code="untrusted-code",
        )
    run = ""
    if job.run is not None:
        run = str(_run(job.run, rules))
        if Path(run).exists():
            raise PenstockError(f"{run} exists already: name another run folder.", code="file-exists")
    document = job.model_copy(update=changes).model_dump(mode="json")
    return {
        "name": _name(name or f"{_graph_name(job.graph)} {job.model_name}", differing),
        "document": document,
        "priority": priority,
        "kind": kind,
        "cores": document["threads"],
        "run": run,
        "likeness": _likeness(document),
    }


def _name(name: str, differing: Mapping[str, Any]) -> str:
    """A job's name, with what tells it from others of that name."""
    shown = {field: value for field, value in differing.items() if field not in _NAMED_ANYWAY}
    values = " ".join(said(shown).split())
    cut = values if len(values) <= _LONGEST_VALUES else f"{values[:_LONGEST_VALUES]} ..."
    return ", ".join(each for each in (" ".join(name.split())[:_LONGEST_NAME], cut) if each)


def _graph_name(graph: str) -> str:
    """What a graph is called: its file without the ending, or its folder."""
    return re.sub(r"\.(npz|tsv|txt|csv|pt)$", "", Path(graph).name)


def allowed_path(given: str, allowed: Sequence[Path]) -> Path:
    """A path without links, which must lie in one of the allowed folders. Nothing is read to find that out."""
    try:
        path = Path(given).expanduser()
        if not path.is_absolute():
            raise PenstockError(
                f"{given} is a relative path, and the service runs in a folder of its own: give an absolute one.",
                code="invalid-value",
            )
        path = path.resolve()
    except (OSError, RuntimeError, ValueError):
        raise PenstockError(f"{given!r} is not a path that can be used: correct it.", code="invalid-value") from None
    if not any(path.is_relative_to(each) for each in allowed):
        raise PenstockError(
            f"{given} is outside of what the service may read ({', '.join(map(str, allowed))}): start it with --allow"
            " and a folder that holds it.",
            code="not-permitted",
        )
    return path


def _run(given: str, rules: SubmissionRules) -> Path:
    """The run folder that a job names."""
    path = allowed_path(given, rules.allowed)
    if path.is_relative_to(rules.reserved):
        raise PenstockError(
            f"{given} is in the folder of the service, which is kept for the runs of jobs that name none: leave `run`"
            " out, or name a folder elsewhere.",
            code="not-permitted",
        )
    return path


def _graph(given: str, rules: SubmissionRules) -> str:
    """A data set's name as it is; a path only if it is allowed and there."""
    if "/" not in given and not given.startswith("~"):
        return given
    path = allowed_path(given, rules.allowed)
    if not path.exists():
        raise PenstockError(f"There is no graph at {given}: check the path.", code="graph-not-found")
    return str(path)


def _kind(job: Job, rules: SubmissionRules) -> str:
    if job.device == "auto":
        return rules.kinds[0]
    if job.device not in rules.kinds:
        raise PenstockError(
            f"The job asks for device {job.device!r}, and this service has {' and '.join(rules.kinds)}: use auto.",
            code="device-not-found",
        )
    return job.device


def _likeness(document: Mapping[str, Any]) -> str:
    """A text that jobs share if they need the same memory and about the same time."""
    kept = {name: value for name, value in document.items() if name not in _NEVER_MATTERS}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:32]
