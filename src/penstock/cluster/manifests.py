"""What asks a cluster's own scheduler for the machines of a cluster file, and trains on them: a KubeRay RayJob, or a
batch script for Slurm.

Both name every machine with the cores, memory and GPUs of the file, start the same `penstock train`, and go on with the
run if it is there already, so that a job that was ended and is started again loses no more than a run that was killed.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from penstock.errors import PenstockError
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.registry import Registry


@dataclass(frozen=True)
class SubmittedRun:
    """What is trained, by paths that all machines see."""

    name: str
    job: str
    cluster: str
    run: str
    image: str | None = None
    """Of containers that have Penstock and Ray."""
    volume: str | None = None
    """CLAIM:PATH, a volume claim and where containers see it."""

    def command(self) -> str:
        """A shell's command that trains, or goes on with the run."""
        run, rest = shlex.quote(self.run), f"{shlex.quote(self.job)} --cluster {shlex.quote(self.cluster)}"
        return (
            f"if [ -e {run}/run.json ]; then penstock train --resume {run}; else penstock train {rest} --run {run}; fi"
        )


@dataclass(frozen=True)
class Manifest:
    """A scheduler's own form of a cluster file."""

    launcher: str
    """The launcher that starts tasks on machines of this scheduler."""
    write: Callable[[ClusterDocument, SubmittedRun], str]
    needs: tuple[str, ...] = ()
    """Fields of a submitted run that it cannot do without."""
    submit: str = ""
    """The command that hands it to the scheduler."""


def manifest_of(cluster: ClusterDocument, submitted: SubmittedRun, scheduler: str) -> str:
    """The text that a scheduler takes."""
    entry = MANIFESTS[scheduler]
    if cluster.launcher != entry.launcher:
        raise PenstockError(
            f"{submitted.cluster} has launcher {cluster.launcher}, and {scheduler} starts tasks by {entry.launcher}:"
            f" write `launcher: {entry.launcher}` in it.",
            code="unsupported-combination",
        )
    for name in entry.needs:
        if not getattr(submitted, name):
            raise PenstockError(f"A manifest for {scheduler} needs --{name}: add it.", code="option-missing")
    return entry.write(cluster, submitted)


# Slurm: components of a heterogeneous job in the order of the cluster file. One step over all of them numbers its nodes
# in this order, as launcher `environment` numbers machines.

_SECRET = """\
# The processes of the job know each other by a random key, which no file holds.
export PENSTOCK_SECRET="${PENSTOCK_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')}\""""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def slurm_script(cluster: ClusterDocument, submitted: SubmittedRun) -> str:
    """A batch script: a component for every stretch of machines that are alike."""
    if not _WORD.fullmatch(submitted.name):
        raise PenstockError(
            f"Slurm cannot name a job {submitted.name!r}: give --name of letters, digits, dots and hyphens.",
            code="invalid-value",
        )
    stretches = [list(alike) for _, alike in groupby(cluster.machines, key=_asked)]
    components = ["\n".join(_component(stretch)) for stretch in stretches]
    last = len(components) - 1
    groups = f" --het-group=0-{last}" if last else ""
    shared = f"#SBATCH --job-name={submitted.name} --requeue --open-mode=append"
    body = "\n#SBATCH hetjob\n".join(components)
    return f"""#!/bin/bash
{shared}
{body}
set -eu
{_SECRET}
exec srun{groups} --cpu-bind=none --kill-on-bad-exit=1 bash -c {shlex.quote(submitted.command())}
"""


def _asked(machine: Machine) -> tuple[int | None, float | None, int]:
    """What a machine is asked for by; machines that are alike in it are nodes of one component."""
    return machine.cores, machine.memory_gb, machine.gpus


def _component(machines: Sequence[Machine]) -> Iterator[str]:
    cores, memory, gpus = _asked(machines[0])
    names = ", ".join(machine.name for machine in machines)
    yield f"# {names}"
    words = [f"--nodes={len(machines)}", "--ntasks-per-node=1"]
    words += [f"--cpus-per-task={cores}"] if cores else ["--exclusive"]
    words += [f"--mem={round(memory * 1000)}M"] if memory else ["--mem=0"] if not cores else []
    words += [f"--gpus-per-node={gpus}"] if gpus else []
    yield "#SBATCH " + " ".join(words)


# KubeRay: a group of one pod for every machine, whose Ray node has the resource machine:NAME, and a head for Ray itself
# and the run's controller.

_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?")
_HEAD = {"cpu": "1", "memory": "4Gi"}


def rayjob(cluster: ClusterDocument, submitted: SubmittedRun) -> str:
    """A RayJob as YAML, which `kubectl apply` takes."""
    if not _LABEL.fullmatch(submitted.name):
        raise PenstockError(
            f"Kubernetes cannot name a job {submitted.name!r}: give --name of up to 47 small letters, digits and"
            " hyphens, with a letter first.",
            code="invalid-value",
        )
    claim, path = _claim(submitted.volume or "")
    for named in (submitted.job, submitted.cluster, submitted.run):
        if not PurePosixPath(named).is_absolute() or not PurePosixPath(named).is_relative_to(path):
            raise PenstockError(
                f"{named} is not in {path}, where containers see the volume: name it by its path there.",
                code="invalid-value",
            )

    def pod(role: str, resources: dict[str, str]) -> dict[str, Any]:
        container = {
            "name": role,
            "image": submitted.image,
            "resources": {"requests": dict(resources), "limits": dict(resources)},
            "volumeMounts": [{"name": "shared", "mountPath": path}],
        }
        volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": claim}}]
        return {"spec": {"containers": [container], "volumes": volumes}}

    groups = [
        {
            "groupName": group,
            "replicas": 1,
            "minReplicas": 1,
            "maxReplicas": 1,
            # Ray reads JSON, which KubeRay puts into a shell's command.
            "rayStartParams": {"resources": f"'{{\"machine:{machine.name}\": 1}}'"},
            "template": pod("ray-worker", _resources(machine)),
        }
        for group, machine in zip(_labels(cluster.machines), cluster.machines, strict=True)
    ]
    document = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": submitted.name},
        "spec": {
            "entrypoint": f"bash -c {shlex.quote(submitted.command())}",
            "shutdownAfterJobFinishes": True,
            "backoffLimit": 3,
            "rayClusterSpec": {
                # Nothing is scheduled on the head.
                "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": pod("ray-head", _HEAD)},
                "workerGroupSpecs": groups,
            },
        },
    }
    return yaml.safe_dump(document, sort_keys=False, width=120)


def _claim(volume: str) -> tuple[str, str]:
    claim, _, path = volume.partition(":")
    if not claim or not PurePosixPath(path).is_absolute():
        raise PenstockError(
            f"--volume is {volume!r}: write CLAIM:PATH, such as penstock-data:/data.", code="invalid-value"
        )
    return claim, path


def _resources(machine: Machine) -> dict[str, str]:
    """What a machine's pod asks for; what the cluster file does not say is left to the node."""
    found: dict[str, str] = {}
    if machine.cores:
        found["cpu"] = str(machine.cores)
    if machine.memory_gb:
        found["memory"] = f"{round(machine.memory_gb * 1000)}M"
    if machine.gpus:
        found["nvidia.com/gpu"] = str(machine.gpus)
    return found


def _labels(machines: Sequence[Machine]) -> Iterator[str]:
    """Names of groups: the machines', as Kubernetes writes names, and told apart."""
    used: set[str] = set()
    for machine in machines:
        plain = re.sub(r"[^a-z0-9]+", "-", machine.name.lower()).strip("-") or "machine"
        plain = plain if plain[0].isalpha() else f"m-{plain}"
        name = next(each for n in range(len(machines) + 1) if (each := f"{plain}-{n}" if n else plain) not in used)
        used.add(name)
        yield name


MANIFESTS: Registry[Manifest] = Registry(
    "manifest",
    "penstock.manifests",
    {
        "kuberay": Manifest("ray", rayjob, ("image", "volume"), "kubectl apply -f"),
        "slurm": Manifest("environment", slurm_script, (), "sbatch"),
    },
    Manifest,
)


def default_name(run: str) -> str:
    """A job's name after its run folder."""
    return re.sub(r"[^a-z0-9]+", "-", Path(run).name.lower()).strip("-") or "penstock"
