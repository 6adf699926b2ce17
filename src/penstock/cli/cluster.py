"""Commands of cluster files: `penstock net` gives groups of flows shares of a network interface, kept by the kernel;
`penstock cluster` writes manifests for schedulers.
"""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import JsonOption, answer, check_new_file, print_json, short
from penstock.cluster.manifests import MANIFESTS
from penstock.errors import PenstockError
from penstock.formatting import counted

if TYPE_CHECKING:
    from penstock.cluster.shaping import Classes, InterfaceQueue
    from penstock.hardware.cluster import Machine

net = typer.Typer(no_args_is_help=True, help="Give flows of a run their shares of a network interface (Linux, root).")

DeviceArgument = Annotated[str, typer.Argument(help="The network interface, as `ip link` names it.")]
MachineOption = Annotated[str | None, typer.Option(help="Which machine of the cluster this is; else by its address.")]
RouterOption = Annotated[
    bool, typer.Option("--router", help="The interface is a router's or switch's, towards --machine.")
]
GroupsOption = Annotated[Path | None, typer.Option(help="A YAML file with groups of flows; else the usual ones.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; else what would be done is printed.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Also remove a queue that someone else has set.")]


@net.command("show")
def show_command(
    device: DeviceArgument,
    cluster: Annotated[Path | None, typer.Option(help="Show also what `apply` would set for this file.")] = None,
    machine: MachineOption = None,
    router: RouterOption = False,
    groups: GroupsOption = None,
    as_json: JsonOption = False,
) -> None:
    """What an interface has, and what it would have.

    Example: penstock net show eth0 --cluster cluster.yaml
    """
    from penstock.cluster.shaping import look

    if cluster is None and (machine is not None or groups is not None or router):
        raise PenstockError(
            "--machine, --router and --groups describe a cluster: name its file with --cluster.", code="option-missing"
        )
    queue = look(device)
    planned = None if cluster is None else _planned(device, cluster, machine, router, groups)[1]
    if as_json:
        classes = [] if planned is None else _class_fields(planned)
        print_json({"device": device, **_queue_fields(queue), "planned": classes})
        return
    _print_queue(device, queue)
    if planned is not None:
        _print_planned(planned)


@net.command("apply")
def apply_command(
    device: DeviceArgument,
    cluster: Annotated[Path, typer.Option(help="The cluster file: rates of links, marks of packets.")],
    machine: MachineOption = None,
    router: RouterOption = False,
    groups: GroupsOption = None,
    yes: YesOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set an interface's classes; a dry run unless --yes is given.

    Example: penstock net apply eth0 --cluster cluster.yaml --yes
    """
    from penstock.cluster.shaping import carry_out, clear_commands, set_commands

    queue = _own_queue(device, force)
    chosen, planned = _planned(device, cluster, machine, router, groups)
    commands = [*(clear_commands(device) if queue.made else []), *set_commands(planned, device)]
    if yes:
        carry_out(device, commands)
    lines = [shlex.join(command) for command in commands]
    if as_json:
        fields = {"device": device, "machine": chosen.name, "rate_mbit": planned.rate / 1e6}
        print_json({**fields, "classes": _class_fields(planned), "commands": lines, "applied": yes})
        return
    _print_planned(planned)
    _print_commands(lines, yes)


@net.command("clear")
def clear_command(
    device: DeviceArgument,
    yes: YesOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what `apply` set; a dry run unless --yes is given.

    Example: penstock net clear eth0 --yes
    """
    from penstock.cluster.shaping import carry_out, clear_commands

    queue = _own_queue(device, force)
    commands = clear_commands(device) if queue.made else []
    if yes:
        carry_out(device, commands)
    lines = [shlex.join(command) for command in commands]
    if as_json:
        cleared = yes and bool(commands)
        print_json({"device": device, **_queue_fields(queue), "commands": lines, "cleared": cleared})
    elif commands:
        _print_commands(lines, yes)
    else:
        print(f"{device} has nothing of penstock's ({queue.kind} {queue.handle}).")


def _own_queue(device: str, force: bool) -> "InterfaceQueue":
    """The queue of an interface, refused where it must not be removed."""
    from penstock.cluster.shaping import look, refuse_foreign

    queue = look(device)
    if not force:
        refuse_foreign(queue, device)
    return queue


def _planned(
    device: str, cluster: Path, machine: str | None, router: bool, groups: Path | None
) -> "tuple[Machine, Classes]":
    from penstock.cluster.cluster_file import read_cluster
    from penstock.cluster.shaping import classes_of, default_groups, machine_of, own_address, peers_of, read_groups

    if router and machine is None:
        raise PenstockError(
            "A router is not a machine of the cluster: use --machine to name the machine that this interface leads to.",
            code="option-missing",
        )
    document = read_cluster(str(cluster))
    chosen = machine_of(document, machine, device)
    wanted = default_groups(document) if groups is None else read_groups(groups)
    unmarked = any(group.dscp is None for group in wanted.groups)
    if not unmarked:
        return chosen, classes_of(wanted, chosen, ())
    return chosen, classes_of(wanted, chosen, own_address(chosen) if router else peers_of(document, chosen))


def _class_fields(planned: "Classes") -> list[dict[str, Any]]:
    from penstock.cluster.shaping import class_number

    return [
        {
            "number": class_number(place),
            "name": each.name,
            "rate_mbit": each.rate / 1e6,
            "ceiling_mbit": each.ceiling / 1e6,
            "priority": each.priority,
            "dscp": each.dscp,
            "addresses": list(each.addresses),
        }
        for place, each in enumerate(planned.classes)
    ]


def _queue_fields(queue: "InterfaceQueue") -> dict[str, Any]:
    return {
        "kind": queue.kind,
        "handle": queue.handle,
        "ours": queue.ours,
        "classes": [asdict(each) for each in queue.classes],
    }


def _print_queue(device: str, queue: "InterfaceQueue") -> None:
    whose = "set by penstock" if queue.ours else "set by someone else" if queue.foreign else "the kernel's own"
    print(f"{device}: {queue.kind} {queue.handle}, {whose}")
    if queue.classes:
        table = Table("class", "rate", "ceiling", "sent bytes", "packets", "waited", "dropped", box=None)
        for each in queue.classes:
            counts = (short(count) for count in (each.bytes, each.packets, each.overlimits, each.dropped))
            table.add_row(each.number, each.rate, each.ceiling, *counts)
        Console().print(table)


def _print_planned(planned: "Classes") -> None:
    table = Table("class", "group", "Mbit/s", "at most", "priority", "packets", box=None)
    for row in _class_fields(planned):
        what = f"dscp {row['dscp']}" if row["dscp"] is not None else f"to {counted(len(row['addresses']), 'machines')}"
        last = row["dscp"] is None and not row["addresses"]
        rates = f"{row['rate_mbit']:,.5g}", f"{row['ceiling_mbit']:,.5g}"
        table.add_row(row["number"], row["name"], *rates, str(row["priority"]), "all others" if last else what)
    Console().print(table)


def _print_commands(lines: list[str], done: bool) -> None:
    for line in lines:
        print(line)
    print("Done." if done else "Nothing was changed: add --yes to do it.")


# What asks a cluster's own scheduler for the machines of a cluster file.

cluster = typer.Typer(no_args_is_help=True, help="Hand a cluster file to Kubernetes or Slurm.")


@cluster.command("manifest")
def manifest_command(
    cluster_file: Annotated[Path, typer.Argument(metavar="CLUSTER", help="The cluster file.")],
    scheduler: Annotated[str, typer.Option("--for", help=f"{MANIFESTS.words()}.")],
    job: Annotated[str, typer.Option(help="The job file, by a path that all machines see.")] = "job.yaml",
    run: Annotated[str, typer.Option(help="The run folder, by a path that all machines see.")] = "runs/run",
    seen_as: Annotated[
        str | None, typer.Option(help="The cluster file's path on the machines.  [default: as here]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The job's name.  [default: the run folder's]")] = None,
    image: Annotated[str | None, typer.Option(help="Kubernetes: an image that has Penstock and Ray.")] = None,
    volume: Annotated[str | None, typer.Option(help="Kubernetes: CLAIM:PATH, a volume that all pods mount.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write.  [default: print it]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a KubeRay RayJob or a batch script for Slurm that trains on a cluster file's machines.

    Example: penstock cluster manifest cluster.yaml --for slurm --job job.yaml --run runs/big -o big.sh

    Example: penstock cluster manifest cluster.yaml --for kuberay --image registry/penstock:1 --volume data:/data
    --seen-as /data/cluster.yaml --job /data/job.yaml --run /data/runs/big -o big.yaml
    """
    from penstock.cluster.cluster_file import read_cluster
    from penstock.cluster.manifests import SubmittedRun, default_name, manifest_of
    from penstock.graph.documents import read_yaml
    from penstock.graph.files import write_whole

    if not cluster_file.is_file():
        raise PenstockError(
            f"There is no cluster file {cluster_file}: name one (docs/cluster.md).", code="file-not-found"
        )
    if isinstance(read_yaml(cluster_file, "a cluster file").get("machines"), str):
        raise PenstockError(
            f"{cluster_file} leaves its machines to the launcher: list them, so that they can be asked for.",
            code="option-missing",
        )
    if out is not None:
        check_new_file(out, force)
    seen = seen_as or str(cluster_file)
    submitted = SubmittedRun(name or default_name(run), job, seen, run, image, volume)
    text = manifest_of(read_cluster(str(cluster_file)), submitted, scheduler)
    how = MANIFESTS[scheduler].submit
    if out is not None:
        write_whole(out, text)
    fields = {"for": scheduler, "name": submitted.name, "path": str(out) if out else None, "manifest": text}
    lines = [text.rstrip("\n")] if out is None else [f"Written to {out}; hand it in with: {how} {out}"]
    answer(as_json, fields, *lines)
