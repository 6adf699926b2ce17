"""How long a run trains: the epochs that `epochs: auto` stands for, and whether a run took enough steps to learn."""

from penstock.graph.graph import Graph
from penstock.pipeline.schedule import Schedule
from penstock.quantities import counted
from penstock.train.job import Job
from penstock.train.tasks import Task
from penstock.train.train_state import TrainState

EPOCHS = 10
"""Epochs of `auto`, where they make steps enough."""
STEPS = 150
"""Steps that `auto` aims at: with 20 labels for each class the public graphs are learned in 20 to 130 steps of Adam."""
_VISITS = 1_000_000_000
"""Vertices and edges that the validations of `auto`'s epochs may read in all, as each reads the whole graph."""
_FEW = 50
"""Steps below which hardly any model has learned."""


def auto_epochs(batches: int, size: int) -> int:
    """Epochs for a split of so many batches, in a graph of `size` vertices and edges: at least 10.

    As many as make 150 steps, fewer where validating after each of them would take long.
    """
    wanted = -(-STEPS // max(1, batches))
    return max(EPOCHS, min(wanted, _VISITS // max(1, size)))


def with_epochs(job: Job, graph: Graph, task: Task) -> Job:
    """The job with a number of epochs, where it leaves that open. Every worker of a cluster finds the same one."""
    if job.epochs:
        return job
    batches = Schedule(task.items, task.batch_size, job.draw_seed).batches
    counts = [nodes.count for nodes in graph.nodes.values()] + [edges.count for edges in graph.edges.values()]
    return job.model_copy(update={"epochs": auto_epochs(batches, sum(counts))})


def epochs_note(epochs: int, batches: int) -> str | None:
    """What the user should know of the epochs that were chosen: nothing, where they are as many as always."""
    if epochs <= EPOCHS:
        return None
    return (
        f"An epoch has {counted(batches, 'batches')}: training for {epochs} epochs"
        f" ({epochs * batches} steps; epochs: auto)."
    )


def few_steps_note(job: Job, train_state: TrainState, batches: int) -> str | None:
    """What the user should know of a run that ended, below 150 steps, while its model was still learning.

    Validations tell: the last one was the best. Where there are none, fewer than 50 steps are too few.
    """
    validated = train_state.best_epoch >= 0 and job.evaluate_every > 0
    few = STEPS if validated and train_state.best_epoch == train_state.epoch else 0 if validated else _FEW
    if train_state.step >= few or train_state.epoch < job.epochs:
        return None
    steps, epochs = counted(train_state.step, "steps"), counted(train_state.epoch, "epochs")
    why = "its last validation was the best" if validated else "nothing was validated"
    return (
        f"The run ended after {steps} ({epochs} of {counted(batches, 'batches')}), and {why}: it may still learn with"
        f" epochs {-(-STEPS // max(1, batches))}."
    )
