"""What a fork of the warm program may do."""

from collections.abc import Callable

from penstock.service.workers.shared_jobs import run_shared
from penstock.service.workers.tasks import run_task

PROGRAMS: dict[str, Callable[[int], int]] = {"task": run_task, "shared": run_shared}
"""By name; each is given the descriptor that it reports to, and returns an exit status."""
