"""What is learned, a file a kind: vertices, links, edges. Adding one touches a file and a line here."""

from penstock.graph.graph import Graph
from penstock.train.data import Task as TaskName
from penstock.train.job import Job
from penstock.train.labels import labelled_vertices
from penstock.train.samplers import make_drawing
from penstock.train.tasks.node import NodeTask
from penstock.train.tasks.task import Scores, Task

__all__ = ["Scores", "Task", "make_task"]


def make_task(name: TaskName, graph: Graph, job: Job) -> tuple[Task, Graph]:
    """The job's task, and the graph it trains on: without the edges it holds out."""
    if name in ("node-classification", "node-regression"):
        data = labelled_vertices(graph, job, name)
        drawing = make_drawing(job, graph, data.splits["train"], totals=True)
        return NodeTask(data, drawing, job), graph
    raise NotImplementedError
