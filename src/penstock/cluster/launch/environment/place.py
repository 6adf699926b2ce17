"""The place of a process in its job (rank, node, world size), from the variables of torchrun or Slurm.

The nodes of the job are the machines of a cluster file that says `machines: environment`.
"""

import os
import re
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.hardware.cluster import LOOPBACK, Machine

_REPEATED = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_FIRST_HOST = re.compile(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?")
_PORTS = range(20_000, 30_000)
_ELSEWHERE = "192.0.2.1"
"""An address kept for documentation: nothing is sent there, but the system says which way it would go."""


@dataclass(frozen=True)
class Place:
    """A process of a job."""

    node: int
    """The number of its node."""
    local: int
    """Its number on that node."""
    workers: tuple[int, ...]
    """How many processes every node has."""
    master: str
    """The host of process 0."""
    port: int
    """Where the job's processes meet, on that host."""
    job: str
    """The job's name, which no other job at this time and place has."""
    met: bool
    """Whether someone listens at the port already, as torchrun does."""

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.workers)

    @property
    def first(self) -> bool:
        """Whether this is process 0."""
        return self.node == 0 and self.local == 0

    def address(self) -> str:
        """Where other nodes reach this one."""
        if self.nodes == 1 or self.master in LOOPBACK:
            return "127.0.0.1"
        found = _way_to(self.master)
        # Many hosts know themselves by a loopback address.
        return _way_to(_ELSEWHERE) if found.startswith("127.") else found


def read_place(variables: Mapping[str, str] = os.environ) -> Place:
    """From the environment of this process."""
    if "RANK" in variables:
        return _of_ranks(variables)
    if "SLURM_PROCID" in variables:
        return _of_slurm(variables)
    raise PenstockError(
        "The launcher `environment` needs a job's environment: start the command with torchrun or srun, or set RANK,"
        " WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
        code="option-missing",
    )


def _of_ranks(variables: Mapping[str, str]) -> Place:
    rank, world = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    local, here = _number(variables, "LOCAL_RANK", 0), _number(variables, "LOCAL_WORLD_SIZE", 1)
    if not 0 <= rank < world or not 0 <= local < here or world % here:
        raise PenstockError(
            f"RANK {rank} of WORLD_SIZE {world} and LOCAL_RANK {local} of LOCAL_WORLD_SIZE {here} contradict each"
            " other: every node must run the same number of processes.",
            code="invalid-value",
        )
    master, port = _said(variables, "MASTER_ADDR"), _number(variables, "MASTER_PORT")
    job = f"{variables.get('TORCHELASTIC_RUN_ID', '')}.{port}"
    met = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(
        _number(variables, "GROUP_RANK", rank // here), local, (here,) * (world // here), master, port, job, met
    )


def _of_slurm(variables: Mapping[str, str]) -> Place:
    node, local = _number(variables, "SLURM_NODEID"), _number(variables, "SLURM_LOCALID")
    tasks = variables.get("SLURM_STEP_TASKS_PER_NODE") or _said(variables, "SLURM_TASKS_PER_NODE")
    workers = tuple(int(count) for count, times in _REPEATED.findall(tasks) for _ in range(int(times or 1)))
    if not 0 <= node < len(workers):
        raise PenstockError(
            f"SLURM_NODEID is {node}, but SLURM_TASKS_PER_NODE {tasks!r} has no such node.", code="invalid-value"
        )
    hosts = variables.get("SLURM_STEP_NODELIST") or _said(variables, "SLURM_JOB_NODELIST")
    job = f"{_said(variables, 'SLURM_JOB_ID')}.{variables.get('SLURM_STEP_ID', '0')}"
    port = _number(variables, "MASTER_PORT", _PORTS[zlib.crc32(job.encode()) % len(_PORTS)])
    return Place(node, local, workers, variables.get("MASTER_ADDR") or _first_host(hosts), port, job, False)


def _first_host(hosts: str) -> str:
    """The first of a list in Slurm's form, say gpu[01-04,07],big3."""
    found = _FIRST_HOST.match(hosts)
    if found is None:
        raise PenstockError(
            f"SLURM_JOB_NODELIST is {hosts!r}, which names no host: set MASTER_ADDR.", code="invalid-value"
        )
    return "".join(part or "" for part in found.groups())


def _said(variables: Mapping[str, str], name: str) -> str:
    if not variables.get(name):
        raise PenstockError(
            f"{name} is not set: start the command with torchrun or srun, or set it.", code="option-missing"
        )
    return variables[name]


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and name not in variables:
        return default
    text = _said(variables, name)
    if not text.isdecimal():
        raise PenstockError(
            f"{name} is {text!r}, which is not a number: start the command with torchrun or srun.", code="invalid-value"
        )
    return int(text)


def _way_to(host: str) -> str:
    """This host's address on the way to another."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((host, 9))
            return str(asked.getsockname()[0])
    except OSError as error:
        raise PenstockError(
            f"There is no route to {host} ({error}): set the address of every machine.", code="peer-lost"
        ) from None


def with_job_machines(fields: dict[Any, Any]) -> dict[Any, Any]:
    """The fields of a cluster file, with the machines of the job that this process belongs to."""
    return {**fields, "machines": machines_of_job(read_place())}


def machines_of_job(place: Place) -> list[Machine]:
    """One machine for each node, with as many workers as the job has processes there. Each finds its own address."""
    return [Machine(name=f"node{number}", workers=workers) for number, workers in enumerate(place.workers)]
