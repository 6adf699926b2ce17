"""Reading a cluster file, and finding the machines that it leaves to Ray or to the job's environment."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock.cluster.launch.environment.place import Place, read_place
from penstock.cluster.launch.ray.cluster import join
from penstock.cluster.launch.ray.nodes import Node
from penstock.errors import PenstockError
from penstock.graph.documents import first_problem, read_yaml
from penstock.hardware.cluster import ClusterDocument, Machine, RayOptions

DISCOVERED = ("ray", "environment")
"""What may be asked for the machines, instead of a list of them."""
_SHORT = re.compile(r"([1-9][0-9]{0,2})x([1-9][0-9]{0,2})")


def read_cluster(text: str) -> ClusterDocument:
    """The cluster in a file; `MxW`: M machines with W workers each, all of them this host; `ray` or `environment`."""
    short = _SHORT.fullmatch(text)
    if short and not Path(text).exists():
        machines, workers = map(int, short.groups())
        return ClusterDocument(machines=[Machine(name=f"m{i}", workers=workers) for i in range(machines)])
    if text in DISCOVERED and not Path(text).is_file():
        fields: dict[Any, Any] = {"machines": text}
    else:
        fields = read_yaml(Path(text), "a cluster file, or say 2x2 for two machines of two workers here")
    if fields.get("machines") in DISCOVERED:
        fields = with_machines(fields)
    try:
        cluster = ClusterDocument.model_validate(fields)
    except ValidationError as error:
        raise PenstockError(f"{text}: {first_problem(error)}.", code="invalid-document") from None
    if cluster.partition is not None and not Path(cluster.partition).is_absolute():
        cluster.partition = str((Path(text).parent / cluster.partition).resolve())
    return cluster


def with_machines(fields: dict[Any, Any]) -> dict[Any, Any]:
    """A cluster file's fields whose `machines` is `ray` or `environment`, with the machines found there."""
    source = fields["machines"]
    if fields.setdefault("launcher", source) != source:
        raise PenstockError(
            f"Machines found by {source} cannot be used by the launcher {fields['launcher']!r}: leave `launcher` out.",
            code="conflicting-options",
        )
    if source == "environment":
        return {**fields, "machines": machines_of_job(read_place())}
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


def machines_of_job(place: Place) -> list[Machine]:
    """A machine a node, with as many workers as the job has processes there. Each finds its own address."""
    return [Machine(name=f"node{number}", workers=workers) for number, workers in enumerate(place.workers)]


def _names(nodes: Sequence[Node]) -> Iterator[str]:
    """As the node was labelled, or is called; a number behind those that would be the same."""
    used: set[str] = set()
    for node in nodes:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", min(node.machines, default=node.name)).lstrip("_.-")[:30] or "node"
        name = next(name for n in range(len(nodes) + 1) if (name := f"{plain}-{n}" if n else plain) not in used)
        used.add(name)
        yield name
