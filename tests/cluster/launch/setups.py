"""Setups of tasks that are never meant to train."""

from pathlib import Path

from penstock.cluster.document import ClusterDocument, Machine
from penstock.cluster.layout import lay_out
from penstock.cluster.setup import Setup
from penstock.wire import make_credentials


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
        cluster=cluster,
        layout=layout,
        addresses={},
    )
