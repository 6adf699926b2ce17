"""The tasks by name, and the properties of each that other packages use.

No other module compares names of tasks. The functions that make tasks are in `train.tasks.TASKS`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.graph.documents import name_in
from penstock.registry import Registry

About = Literal["vertices", "edges", "triples"]
Learns = Literal["classes", "numbers", "links"]


@dataclass(frozen=True)
class TaskFacts:
    """The properties of a task that other packages use."""

    about: About
    """What a batch holds: vertices, edges of one relation, or triples of all relations."""
    learns: Learns
    """What is learned of them: classes, numbers, or which edges there are."""
    drawn_by_devices: bool = False
    """Whether a device may draw its batches by itself."""
    drawn_if_captured: bool = False
    """Whether a device may draw its batches at least for the captured steps of a run that one worker does."""
    explainable: bool = False
    """Whether a prediction can be explained, and sampler `explained` may use explanations."""
    predictable: bool = False
    """Whether the cost model knows all operators of its steps, and its profiles can be scaled to other clusters."""
    on_clusters: bool = False
    """Whether workers of a cluster can make it from a partitioned graph."""

    @property
    def drawn_in_captured_steps(self) -> bool:
        """Whether a device may draw its batches for captured steps."""
        return self.drawn_by_devices or self.drawn_if_captured


def _of_vertices(learns: Learns) -> TaskFacts:
    return TaskFacts("vertices", learns, drawn_by_devices=True, explainable=True, predictable=True, on_clusters=True)


def _of_edges(learns: Learns) -> TaskFacts:
    return TaskFacts("edges", learns, drawn_if_captured=True, on_clusters=True)


TASK_FACTS: Registry[TaskFacts] = Registry(
    "task",
    "penstock.tasks",
    {
        "node-classification": _of_vertices("classes"),
        "node-regression": _of_vertices("numbers"),
        "link-prediction": _of_edges("links"),
        "edge-classification": _of_edges("classes"),
        "edge-regression": _of_edges("numbers"),
        "knowledge-graph-completion": TaskFacts("triples", "links", on_clusters=True),
    },
    TaskFacts,
    part="facts",
)

if TYPE_CHECKING:
    TaskName = str
    TaskChoice = str
else:
    TaskName = name_in(TASK_FACTS)
    TaskChoice = name_in(TASK_FACTS, "auto")


def task_for(about: About, learns: Learns) -> str:
    """The name of Penstock's own task that learns `learns` about such examples."""
    return next(name for name, facts in TASK_FACTS.items() if (facts.about, facts.learns) == (about, learns))


def is_about(task: str, about: About) -> bool:
    """Whether a task is known by name and has such examples."""
    return task in TASK_FACTS and TASK_FACTS[task].about == about
