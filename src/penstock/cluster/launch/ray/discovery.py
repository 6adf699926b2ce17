"""The machines of a cluster that Ray has: `machines: ray` in a cluster file."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from penstock.cluster.launch.ray.cluster import join
from penstock.cluster.launch.ray.nodes import Node
from penstock.errors import PenstockError
from penstock.graph.documents import first_problem
from penstock.hardware.cluster import Machine, RayOptions


def with_ray_machines(fields: dict[Any, Any]) -> dict[Any, Any]:
    """The fields of a cluster file, with the machines that Ray has."""
    try:
        # A machine that was found is whichever node can be it, also when the run goes on another day.
        options = RayOptions.model_validate({"address": "auto", "spares": True, **(fields.get("ray") or {})})
    except (ValidationError, TypeError) as error:
        said = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise PenstockError(f"The cluster file's ray: {said}.", code="invalid-document") from None
    cluster = join(options)
    try:
        machines = machines_of_nodes(cluster.nodes())
    finally:
        cluster.close()
    return {**fields, "machines": machines, "ray": options}


def machines_of_nodes(nodes: Sequence[Node]) -> list[Machine]:
    """A machine a node, with a worker a GPU, or one where there is none. Nodes without cores only keep Ray going."""
    nodes = [node for node in nodes if node.cores >= 1]
    if not nodes:
        raise PenstockError(
            "No node of the Ray cluster has a CPU to train on: start one with `ray start`.", code="infeasible"
        )
    return [
        Machine(
            name=name,
            address=node.address,
            workers=max(1, int(node.gpus)),
            cores=int(node.cores),
            memory_gb=math.floor(node.memory / 1e6) / 1e3 or None,
            gpus=int(node.gpus),
        )
        for name, node in zip(_names(nodes), nodes, strict=True)
    ]


def _names(nodes: Sequence[Node]) -> Iterator[str]:
    """As the node was labelled, or is called; a number behind those that would be the same."""
    used: set[str] = set()
    for node in nodes:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", min(node.machines, default=node.name)).lstrip("_.-")[:30] or "node"
        name = next(name for n in range(len(nodes) + 1) if (name := f"{plain}-{n}" if n else plain) not in used)
        used.add(name)
        yield name
