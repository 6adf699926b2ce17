"""Notes for the user before a job trains: what was chosen for them, and what in the data may mislead."""

from collections.abc import Iterator

from penstock.graph.graph import Graph
from penstock.graph.inspect import shared_vertices, unlearned_classes
from penstock.graph.tasks import TASK_FACTS, TaskName
from penstock.sampling.sampler_table import SAMPLERS
from penstock.sampling.triples.triple_set import relations_of
from penstock.train.dataset.labels import labelled_vertices
from penstock.train.job import Job


def data_notes(graph: Graph, job: Job, task: TaskName) -> Iterator[str]:
    """Sentences about the task and the splits that were chosen, and the serious warnings of `penstock data inspect`."""
    facts = TASK_FACTS[task]
    if job.task == "auto" and facts.learns == "links":
        learned = "links" if facts.about == "edges" else "triples of all relations"
        yield (
            f"The graph has no labels {job.label!r}, so {learned} are learned (task: {task}): set `label` or `task` to"
            " learn something else."
        )
    if facts.about == "triples" and len(relations := relations_of(graph.edges)) == 1:
        yield (
            f"The graph has one relation, {relations[0][1]!r}, so all triples are of it: task link-prediction learns"
            " from neighbours and is usually meant."
        )
    if facts.about == "vertices":
        yield from _about_vertices(graph, job, task)
    if not SAMPLERS[job.sampler].makes_batches:
        yield from _about_whole(job)


def _about_vertices(graph: Graph, job: Job, task: TaskName) -> Iterator[str]:
    found = labelled_vertices(graph, job, task)
    nodes = graph.nodes[found.node_type]
    if job.split == "auto" and "train" not in nodes.splits:
        shares = " / ".join(f"{share:.0%}" for share in job.split_ratio)
        yield (
            f"The graph has no splits: {shares} of the labelled vertices were drawn at random for training, validation"
            f" and testing (split_number {job.split_number}); set `split`, `split_ratio` or `split_number` for others."
        )
    yield from shared_vertices(found.node_type, found.splits)
    if TASK_FACTS[task].learns == "classes":
        yield from unlearned_classes(found.node_type, found.labels, found.splits)


def _about_whole(job: Job) -> Iterator[str]:
    """Notes on fields that the user set and that only mini-batch training uses."""
    defaults = type(job).model_fields
    ignored = [name for name in ("fanouts", "batch_size") if getattr(job, name) != defaults[name].default]
    if ignored == ["fanouts"] and not job.layers:
        number = f"{len(job.fanouts)} layers"
        yield f"sampler {job.sampler} reads all neighbours: of fanouts only their number counts ({number})."
    elif ignored:
        used = "is" if len(ignored) == 1 else "are"
        yield f"sampler {job.sampler} trains on all vertices at once: {' and '.join(ignored)} {used} not used."
