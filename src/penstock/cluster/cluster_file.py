"""Reading a cluster file, and finding the machines that it leaves to its launcher."""

import re
from pathlib import Path
from typing import Any

from penstock.cluster.launch import LAUNCHERS
from penstock.errors import PenstockError
from penstock.graph.documents import read_yaml, validated
from penstock.graph.object_folders import is_remote
from penstock.hardware.cluster import LAUNCHER_FACTS, UNCUT, ClusterDocument, Machine

_SHORT = re.compile(r"([1-9][0-9]{0,2})x([1-9][0-9]{0,2})")


def read_cluster(text: str) -> ClusterDocument:
    """The cluster in a file; `MxW`: M machines with W workers each, all of them this host; `ray` or `environment`."""
    short = _SHORT.fullmatch(text)
    if short and not Path(text).exists():
        return _of_this_host(*map(int, short.groups()))
    if text in _discovering() and not Path(text).is_file():
        fields: dict[Any, Any] = {"machines": text}
    else:
        fields = read_yaml(Path(text), "a cluster file, or say 2x2 for two machines of two workers here")
    if fields.get("machines") in _discovering():
        fields = with_machines(fields)
    cluster = validated(ClusterDocument, fields, text)
    remote = cluster.partition is not None and is_remote(cluster.partition)
    if cluster.partition is not None and not remote and not Path(cluster.partition).is_absolute():
        cluster.partition = str((Path(text).parent / cluster.partition).resolve())
    return cluster


def _of_this_host(machines: int, workers: int) -> ClusterDocument:
    """Machines that are all this host, with its GPUs in order, one for each worker while they last."""
    import torch

    left, found = torch.cuda.device_count(), list[Machine]()
    for number in range(machines):
        found.append(Machine(name=f"m{number}", workers=workers, gpus=min(workers, left)))
        left -= found[-1].gpus
    return ClusterDocument(machines=found)


def gpus_of_this_host(count: int, device: str) -> ClusterDocument:
    """This host with a worker for each of so many of its GPUs; all of them open the graph's own folder.

    With device `cpu` there are as many workers, which compute on the host.
    """
    import torch

    found = torch.cuda.device_count()
    if count < 1:
        raise PenstockError(f"gpus is {count}: give 1 or more.", code="value-out-of-range")
    if device != "cpu" and count > found:
        has = f"{found} GPU" + ("" if found == 1 else "s") if found else "no GPU"
        raise PenstockError(
            f"{count} GPUs were asked for and this host has {has}: ask for fewer, set device to cpu, or have workers"
            " share them by share_gpus in a cluster file (docs/cluster.md).",
            code="device-not-found",
        )
    machine = Machine(name="m0", workers=count, gpus=min(count, found))
    return ClusterDocument(machines=[machine], method=UNCUT)


def _discovering() -> list[str]:
    """Launchers that can find the machines themselves, instead of a list of them."""
    return [name for name in LAUNCHER_FACTS.names() if LAUNCHER_FACTS[name].discovers]


def with_machines(fields: dict[Any, Any]) -> dict[Any, Any]:
    """A cluster file's fields whose `machines` names a launcher, with the machines that it finds."""
    source = fields["machines"]
    if fields.setdefault("launcher", source) != source:
        raise PenstockError(
            f"Machines found by {source} cannot be used by the launcher {fields['launcher']!r}: leave `launcher` out.",
            code="conflicting-options",
        )
    discover = LAUNCHERS[source].discover
    assert discover is not None
    return discover(fields)
