"""The queues of the CoGNN paper: graphs of its sizes, and 20 jobs for each of five queues."""

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memory_forecast import lists
from penstock.graph.data import NodeSet
from penstock.graph.folder import Graph
from penstock.train.run_files.checkpoints import read_state
from queue_policies import GRAPHS, HIDDEN, LAYERS

QUEUES = ("gcn", "sage", "gat", "gin", "mix", "small")
"""The source's five; and one of ours, of its small graphs: what somebody runs who tunes."""
_SMALL = 50_000
"""Vertices that a small graph has at most."""
RATIOS = {"gcn": 1.0, "sage": 0.5, "gat": 0.6, "gin": 1.0}
"""The part of the edges that a model reads: the source's sampling ratios, drawn once for each graph."""
CLASSES = 10
_WIDEST = 256
"""Features of made graphs: two of the source's have over a thousand, which would only make their files larger."""


@dataclass(frozen=True)
class QueuedJob:
    """One job of a queue."""

    model: str
    graph: str
    layers: int

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.model} {self.graph} {self.layers}"

    def fields(self, data: Path, scale: float, epochs: int, device: str, threads: int) -> dict[str, Any]:
        """The job's document; its graph is made in `data` where it is not there."""
        return {
            "graph": str(made_graph(data, self.graph, RATIOS[self.model], scale)),
            "model": self.model,
            "sampler": "whole",
            "layers": self.layers,
            "hidden": HIDDEN,
            "epochs": epochs,
            "evaluate_every": 0,
            "checkpoint_minutes": 1,
            "device": device,
            "threads": threads,
        }


def jobs_of(queue: str, count: int, order: int) -> list[QueuedJob]:
    """The jobs of a queue, the same for every order, in that order of arrival."""
    models = [queue] if queue in RATIOS else list(RATIOS)
    graphs = [name for name, (vertices, _, _) in GRAPHS.items() if queue != "small" or vertices <= _SMALL]
    choices = [QueuedJob(model, graph, layers) for model in models for graph in graphs for layers in LAYERS]
    jobs = random.Random(f"{queue} jobs").sample(choices, count)
    random.Random(f"{queue} order {order}").shuffle(jobs)
    return jobs


def made_graph(data: Path, name: str, ratio: float, scale: float) -> Path:
    """A graph with the vertices and edges of one of the source's, whose features tell something of the labels."""
    folder = data / f"{name}-{ratio}-{scale}"
    if not folder.exists():
        vertices, edges, width = GRAPHS[name]
        count, width = max(100, round(scale * vertices)), min(width, _WIDEST)
        rng = np.random.default_rng(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
        labels = rng.integers(0, CLASSES, count)
        x = rng.standard_normal((count, width), np.float32)
        x += rng.standard_normal((CLASSES, width), np.float32)[labels] / 2
        parts = np.split(rng.permutation(count), [int(0.6 * count), int(0.8 * count)])
        splits = {split: np.sort(part) for split, part in zip(("train", "val", "test"), parts, strict=True)}
        edges_made = lists(rng, count, count, max(count, round(scale * ratio * edges)))
        nodes = NodeSet(count, {"x": x, "y": labels}, splits)
        Graph({"node": nodes}, {("node", "to", "node"): edges_made}, name).save(folder)
    return folder


def outcome_of(run: Path) -> dict[str, Any]:
    """What a run has come to: its metrics, the seconds of its steps, and a hash of its weights."""
    try:
        facts = json.loads((run / "run.json").read_text())
        newest = max((run / "checkpoints").glob("step-*.ckpt"))
    except (OSError, ValueError):
        return {"trained": "nothing"}
    result, hashed = facts.get("result", {}), hashlib.sha256()
    for part, tensors in sorted(read_state(newest)["learned"].items()):
        hashed.update(part.encode())
        hashed.update(np.ascontiguousarray(tensors).tobytes())
    return {
        "trained": facts["state"],
        "train_s": result.get("seconds"),
        "epochs": result.get("epochs"),
        "train_loss": result.get("train_loss"),
        "val": result.get("val"),
        "test": result.get("test"),
        "peak_mb": result.get("device_peak_mb", result.get("peak_rss_mb")),
        "predicted_mb": result.get("device_predicted_mb", result.get("predicted_mb")),
        "weights": hashed.hexdigest()[:16],
    }
