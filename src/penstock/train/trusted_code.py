"""Code that a run folder or a plan names: it is run only when the user has said so, as both may come from others."""

from collections.abc import Iterable
from pathlib import Path

from penstock.errors import PenstockError
from penstock.nn.user_module import user_module_location
from penstock.train.job import Job

_started_here: set[tuple[Path, str]] = set()
"""Runs that this process has started itself, with the code that it was told to run."""
FUNCTIONS = ("loss", "metrics", "callbacks")
"""Fields whose code is run where the model is given as an object."""


def remember_code(run: Path, job: Job) -> None:
    """A run that this process starts may be used by it without asking again."""
    _started_here.update((run.resolve(), name) for names in job.own_code.values() for name in names)


def check_code(
    job: Job, source: Path, trusted: bool, named: str | None = None, fields: Iterable[str] | None = None
) -> None:
    """Refuse a job from a run folder or a plan that names code which nobody has vouched for.

    The user does so with `--trust-module`, or by naming the same module again (`named`). `fields` are those whose code
    is about to be run; None: all.
    """
    if named is not None and (job.module is None or user_module_location(named) != user_module_location(job.module)):
        raise PenstockError(
            f"{source} has the module {job.module!r}, not {named!r}: name that one, or leave it out.",
            code="mismatched-inputs",
        )
    if trusted:
        return
    code = {field: names for field, names in job.own_code.items() if fields is None or field in fields}
    if named is not None:
        code.pop("module", None)
    unknown = [name for names in code.values() for name in names if (source.resolve(), name) not in _started_here]
    if unknown:
        raise PenstockError(
            f"{source} names code that would be run, {', '.join(unknown)}, and it may come from somebody else: read"
            " that code, then add --trust-module (in Python trust_module=True).",
            code="untrusted-code",
        )
