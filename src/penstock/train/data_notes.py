"""Notes for the user before a job trains: what was chosen for them, and what in the data may mislead."""

from collections.abc import Iterator

from penstock.graph.graph import Graph
from penstock.graph.inspect import shared_vertices, unlearned_classes
from penstock.sampling.triples.triple_set import relations_of
from penstock.train.job import Job
from penstock.train.job_options import Task
from penstock.train.labels import labelled_vertices


def data_notes(graph: Graph, job: Job, task: Task) -> Iterator[str]:
    """Sentences about the task and the splits that were chosen, and the serious warnings of `penstock data inspect`."""
    if job.task == "auto" and task in ("link-prediction", "knowledge-graph-completion"):
        learned = "links" if task == "link-prediction" else "triples of all relations"
        yield (
            f"The graph has no labels {job.label!r}, so {learned} are learned (task: {task}): set `label` or `task` to"
            " learn something else."
        )
    if task == "knowledge-graph-completion" and len(relations := relations_of(graph.edges)) == 1:
        yield (
            f"The graph has one relation, {relations[0][1]!r}, so all triples are of it: task link-prediction learns"
            " from neighbours and is usually meant."
        )
    if task in ("node-classification", "node-regression"):
        yield from _about_vertices(graph, job, task)
    if job.sampler == "whole":
        yield from _about_whole(job)


def _about_vertices(graph: Graph, job: Job, task: Task) -> Iterator[str]:
    found = labelled_vertices(graph, job, task)
    nodes = graph.nodes[found.node_type]
    if job.split == "auto" and "train" not in nodes.splits:
        shares = " / ".join(f"{share:.0%}" for share in job.split_ratio)
        yield (
            f"The graph has no splits: {shares} of the labelled vertices were drawn at random for training, validation"
            f" and testing (split_number {job.split_number}); set `split`, `split_ratio` or `split_number` for others."
        )
    yield from shared_vertices(found.node_type, found.splits)
    if task == "node-classification":
        yield from unlearned_classes(found.node_type, found.labels, found.splits)


def _about_whole(job: Job) -> Iterator[str]:
    """Notes on fields that the user set and that only mini-batch training uses."""
    defaults = type(job).model_fields
    ignored = [name for name in ("fanouts", "batch_size") if getattr(job, name) != defaults[name].default]
    if ignored == ["fanouts"] and not job.layers:
        yield f"sampler whole reads all neighbours: of fanouts only their number counts ({len(job.fanouts)} layers)."
    elif ignored:
        used = "is" if len(ignored) == 1 else "are"
        yield f"sampler whole trains on all vertices at once: {' and '.join(ignored)} {used} not used."
