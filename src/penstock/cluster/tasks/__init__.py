"""The processes of a run, one file for each kind."""

from collections.abc import Callable
from importlib import import_module

from penstock.cluster.layout import Setup


def run_task(setup: Setup) -> int:
    """Take part in a run until it is over; returns the exit status."""
    # Imported here, since a store needs none of what a worker imports.
    kind = setup.task.kind
    run: Callable[[Setup], int] = getattr(import_module(f"penstock.cluster.tasks.{kind}"), f"run_{kind}")
    return run(setup)
