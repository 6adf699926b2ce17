"""Setups of tasks that are never meant to train, and a watch over what tests leave behind."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster_runs import MARK, marked_processes
from forks import forking_process
from penstock.cluster.layout import Setup, lay_out
from penstock.hardware.cluster import ClusterDocument, FailureOptions, Machine
from penstock.wire.transport.tls import make_credentials


def cluster_of(*machines: Machine, **fields) -> ClusterDocument:
    """A cluster with these machines."""
    return ClusterDocument(machines=list(machines), **fields)


def setup_of(cluster: ClusterDocument, run: Path, task: str, incarnation: int = 0) -> Setup:
    """What a task of a run would be told; its partition is not there, and nobody is at its controller's address."""
    layout = lay_out(cluster, len(cluster.machines))
    spec = next(each for each in layout.tasks if each.id == task)
    (run / "logs").mkdir(parents=True, exist_ok=True)
    return Setup(
        task=spec,
        incarnation=incarnation,
        credentials=make_credentials(["controller", task])[task].to_json(),
        controller="tcp://127.0.0.1:9",
        run=str(run),
        partition=str(run / "parts"),
        job={"graph": "none"},
        cluster=cluster.model_copy(update={"failure": FailureOptions(patience=1)}),
        layout=layout,
        addresses={},
    )


@contextmanager
def nothing_left() -> Iterator[None]:
    """Processes started meanwhile are gone soon afterwards."""
    # It stays for other tests.
    forking_process()
    mark = os.environ[MARK] = uuid.uuid4().hex
    try:
        yield
    finally:
        del os.environ[MARK]
    for _ in range(200):
        if not marked_processes(mark):
            return
        time.sleep(0.05)
    assert marked_processes(mark) == []
