"""The processes of a run. Each imports what its kind needs: a store needs none of what a worker imports."""

from penstock.cluster.layout import Setup


def run_task(setup: Setup) -> int:
    """Take part in a run until it is over; returns the exit status."""
    match setup.task.kind:
        case "store":
            from penstock.cluster.tasks.store import run_store as run
        case "sampler":
            from penstock.cluster.worker.batch_source import run_sampler as run
        case "server":
            from penstock.cluster.tasks.server import run_server as run
        case "worker":
            from penstock.cluster.tasks.worker import run_worker as run
    return run(setup)
