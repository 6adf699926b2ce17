"""A job made ready on one of several workers."""

from pathlib import Path

import numpy as np
import torch

from penstock.cluster.server import check_served
from penstock.cluster.worker.cut_graph import Parts, open_cut_graph
from penstock.cluster.worker.drawing import make_parted_drawing
from penstock.cluster.worker.inputs import PartedInputs
from penstock.cluster.worker.split import SeedSplit
from penstock.errors import PenstockError
from penstock.train.data import choose_task
from penstock.train.job import Job
from penstock.train.labels import labelled_vertices
from penstock.train.session import Session, assembled, try_out
from penstock.train.tasks import NodeTask


def make_parted_session(parts: Parts, job: Job) -> tuple[Session, SeedSplit]:
    """Everything the job names, over a cut graph; and how its batches are split."""
    setup = parts.member.setup
    _check(job, setup.cluster.reduce)
    graph = open_cut_graph(parts, job.label)
    torch.manual_seed(job.seed)
    inputs = PartedInputs(graph, parts, job)
    task_name = choose_task(graph, job)
    if task_name not in ("node-classification", "node-regression"):
        raise PenstockError(f"Task {task_name} is not trained on several machines yet: train it on one.")
    data = labelled_vertices(graph, job, task_name)
    train = np.asarray(data.splits["train"])
    new = parts.partition.new_ids(train, data.node_type)
    drawing = make_parted_drawing(parts, job, data.node_type, not graph.is_homogeneous, train, new)
    task = NodeTask(data, drawing, job)
    session = assembled(job, graph, inputs, task)
    if not any((Path(setup.run) / "checkpoints").glob("step-*.ckpt")):
        # Once a run has begun, its embeddings are past the first step, and the model has been tried.
        try_out(session, with_loss=True)
    return session, SeedSplit(train, new, setup.layout.shares, setup.task.rank)


def _check(job: Job, reduce: str) -> None:
    """What is not done on several machines is said before anything starts."""
    if job.device not in ("auto", "cpu"):
        raise PenstockError(f"Device {job.device} is not used on several machines yet: set device to cpu.")
    if reduce == "servers":
        check_served(job)
    if job.norm == "batch":
        raise PenstockError(
            "norm batch takes its means from one worker's rows and would depend on their number: choose another norm."
        )
