"""What run.json says of a run from its first moment: the graph, the task, the machine."""

import os
import platform
from typing import Any

import torch

from penstock.cost.machine import processor_name
from penstock.graph.blocks import default_threads
from penstock.graph.schema import edge_key
from penstock.train.session import Session
from penstock.train.train_state import TrainState
from penstock.version import __version__

_MB = 1 << 20


def run_facts(session: Session) -> dict[str, Any]:
    """Everything known before the first step."""
    graph, task = session.graph, session.task
    return {
        "graph": {
            "name": graph.name,
            "nodes": {name: nodes.count for name, nodes in graph.nodes.items()},
            "edges": {edge_key(kind): edges.count for kind, edges in graph.edges.items()},
            "bytes": graph.nbytes,
            "features": session.inputs.widths,
            "learned": sorted(session.inputs.tables),
            "classes": task.out,
        },
        "decided": session.decided,
        "decided_by": session.decided_by,
        "settled": session.settled,
        "task": task.name,
        "labels": session.label_facts(),
        "metric": {"name": task.metric.name, "better": task.metric.better},
        "parameters": session.parameters,
        "machine": {
            "cpu": processor_name(),
            "gpu": torch.cuda.get_device_name(session.inputs.device) if session.inputs.device.type == "cuda" else None,
            "cores": default_threads(),
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "penstock": __version__,
        },
    }


def device_facts(session: Session, train_state: TrainState) -> dict[str, Any]:
    """What a result says of the processor that trained: what lay where, how fast, its memory."""
    spent = sum(train_state.epoch_seconds) + train_state.epoch_elapsed
    return {
        "device": str(session.inputs.device),
        "batches_per_second": round(train_state.step / spent, 2) if spent else 0.0,
        **session.execution.facts(),
    }
