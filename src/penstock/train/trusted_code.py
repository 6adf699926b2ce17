"""Code that a run folder or a plan names: it is run only when the user has said so, as both may come from others."""

from pathlib import Path

from penstock.errors import PenstockError
from penstock.nn.user_module import user_module_location
from penstock.train.job import Job

_started_here: set[tuple[Path, str]] = set()
"""Runs that this process has started itself, with the code that it was told to run."""


def remember_code(run: Path, job: Job) -> None:
    """A run that this process starts may be used by it without asking again."""
    if job.module is not None:
        _started_here.add((run.resolve(), job.module))


def check_code(job: Job, source: Path, trusted: bool, named: str | None = None) -> None:
    """Refuse a job from a run folder or a plan whose `module` nobody has vouched for.

    The user does so with `--trust-module`, or by naming the same module again (`named`).
    """
    if named is not None and (job.module is None or user_module_location(named) != user_module_location(job.module)):
        raise PenstockError(
            f"{source} has the module {job.module!r}, not {named!r}: name that one, or leave it out.",
            code="mismatched-inputs",
        )
    if job.module is None or trusted or named is not None or (source.resolve(), job.module) in _started_here:
        return
    raise PenstockError(
        f"{source} names code that would be run, {job.module}, and it may come from somebody else: read that code,"
        " then add --trust-module (in Python trust_module=True).",
        code="untrusted-code",
    )
