"""Refuses jobs of knowledge graph completion that ask for what would be ignored, and runs on other relations."""

from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.train.job import Job
from penstock.train.learned_labels import LearnedLabels


def check_triple_job(job: Job) -> None:
    """Refuse fields that have no meaning for this task."""
    if job.time is not None:
        raise PenstockError(
            f"Knowledge graph completion does not go by time: leave out `time` ({job.time!r}), or set task to"
            " link-prediction and name a relation with `edge_type`.",
            code="unsupported-combination",
        )
    if job.edge_type is not None:
        raise PenstockError(
            "Knowledge graph completion is over all relations: leave out `edge_type`, or set task to link-prediction.",
            code="conflicting-options",
        )
    if (job.regulariser == "none") != (job.regularisation == 0):
        raise PenstockError(
            f"regulariser is {job.regulariser} and regularisation {job.regularisation:g}: set both, or neither.",
            code="conflicting-options",
        )
    if job.adversarial and job.link_loss == "softmax":
        raise PenstockError(
            "link_loss softmax weighs negatives by itself: leave out `adversarial`, or choose bce or margin.",
            code="conflicting-options",
        )


def check_relations(relations: Sequence[EdgeType], learned: LearnedLabels | None) -> None:
    """A run's relation vectors mean something only for the relations that it learned, in their order."""
    words = None if learned is None else learned.words
    if words is not None and words != [relation for _, relation, _ in relations]:
        raise PenstockError(
            f"The run learned {len(words)} relations, and the graph's are others ({len(relations)}): use the graph of"
            " the run, or one with the same relations.",
            code="mismatched-inputs",
        )
