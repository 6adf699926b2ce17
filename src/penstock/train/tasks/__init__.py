"""The kinds of task, one file for each. To add one, write a file and add a line here.

The properties of a task that other packages use are in `graph.tasks.TASK_FACTS`, which imports nothing from here.
"""

from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS
from penstock.registry import Registry
from penstock.train.dataset.labels import LearnedLabels
from penstock.train.job import Job
from penstock.train.tasks.edges import EdgeTask, make_edge_task
from penstock.train.tasks.links import LinkTask, make_link_task
from penstock.train.tasks.node import NodeTask, make_node_task
from penstock.train.tasks.task import ALL, Scores, Task, TaskEntry
from penstock.train.tasks.triples import TripleTask, make_triple_task
from penstock.train.user_functions import NO_FUNCTIONS, UserFunctions

__all__ = ["ALL", "TASKS", "EdgeTask", "LinkTask", "NodeTask", "Scores", "Task", "TaskEntry", "TripleTask", "make_task"]

TASKS: Registry[TaskEntry] = Registry(
    "task",
    "penstock.tasks",
    {
        name: TaskEntry(make, TASK_FACTS[name])
        for name, make in {
            "node-classification": make_node_task,
            "node-regression": make_node_task,
            "link-prediction": make_link_task,
            "edge-classification": make_edge_task,
            "edge-regression": make_edge_task,
            "knowledge-graph-completion": make_triple_task,
        }.items()
    },
    TaskEntry,
)


def make_task(
    name: str,
    graph: Graph,
    job: Job,
    learned: LearnedLabels | None = None,
    split: str = "train",
    functions: UserFunctions = NO_FUNCTIONS,
) -> tuple[Task, Graph]:
    """The job's task, and the graph it trains on: without the edges it holds out.

    With the labels that a run has `learned`, the task is for using its model: the graph need not have labels, and an
    epoch consists of a few items only. Otherwise `split` names the items of an epoch. `functions` are the user's.
    """
    return TASKS[name].make(name, graph, job, learned, split, functions)
