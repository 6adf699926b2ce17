"""A process's place in a job of torchrun or Slurm, and how the processes of a job find and authenticate process 0."""

import hmac
import os
import re
import socket
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from penstock.errors import PenstockError
from penstock.graph.files import read_document
from penstock.hardware.cluster import LOOPBACK, Machine
from penstock.wire.transport.tls import Credentials, make_credentials

# The place of a process in its job (rank, node, world size), from the variables of torchrun or Slurm.
#
# The nodes of the job are the machines of a cluster file that says `machines: environment`.

_REPEATED = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_FIRST_HOST = re.compile(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?")
_PORTS = range(20_000, 30_000)
_ELSEWHERE = "192.0.2.1"
"""An address reserved for documentation: nothing is sent there, but it shows which interface would be used."""


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
    """The port on that host where the job's processes meet."""
    job: str
    """The job's name, unique among jobs at this time and host."""
    met: bool
    """Whether another process listens at the port already, as torchrun does."""

    @property
    def nodes(self) -> int:
        """The number of nodes of the job."""
        return len(self.workers)

    @property
    def first(self) -> bool:
        """Whether this is process 0."""
        return self.node == 0 and self.local == 0

    def address(self) -> str:
        """The address at which other nodes reach this one."""
        if self.nodes == 1 or self.master in LOOPBACK:
            return "127.0.0.1"
        found = _way_to(self.master)
        # Many hosts resolve their own name to a loopback address.
        return _way_to(_ELSEWHERE) if found.startswith("127.") else found


def read_place(variables: Mapping[str, str] = os.environ) -> Place:
    """The place of this process, from its environment."""
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
    """The first host of a list in Slurm's form, such as gpu[01-04,07],big3."""
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
    """This host's address on the route to another."""
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


# How the processes of a job find process 0, and how both sides authenticate. The launcher's address is in torchrun's
# store, or in one of its own. Any process may write there, so nothing else is read from it: the process that answers at
# the address must prove that it is the launcher. Keys are derived from a random key that all processes of a job share.

_KEY = "penstock/launcher"


def publish(place: Place, address: str, patience: float) -> Any:
    """Publish the launcher's address for as long as the returned object is kept."""
    store = _store(place, not place.met, patience)
    store.set(_KEY, address)
    return store


def find_launcher(place: Place, patience: float) -> str:
    """The address at which the launcher listens."""
    try:
        address: bytes = _store(place, False, patience).get(_KEY)
    except (RuntimeError, ValueError) as error:
        raise _unmet(place, error) from None
    return address.decode("ascii", "replace")


def _store(place: Place, host: bool, patience: float) -> Any:
    torch: Any = distributed
    wait = timedelta(seconds=patience)
    try:
        return torch.TCPStore(place.master, place.port, None, host, wait, wait_for_workers=False)
    except (RuntimeError, ValueError, OSError) as error:
        raise _unmet(place, error) from None


def _unmet(place: Place, error: BaseException) -> PenstockError:
    said = str(error).strip().splitlines()[0]
    return PenstockError(
        f"The job's processes cannot connect at {place.master}:{place.port} ({said}): check that process 0 runs, and"
        " that MASTER_ADDR and MASTER_PORT are its host and a free port there.",
        code="peer-lost",
    )


LAUNCHER = "launcher"
SECRET, SECRET_FILE = "PENSTOCK_SECRET", "PENSTOCK_SECRET_FILE"
_SECRET = re.compile(r"[0-9A-Fa-f]{64}")
_MEND = f"say `export {SECRET}=$(openssl rand -hex 32)` where the job is submitted, or name a file in {SECRET_FILE}"


def agent_name(node: int) -> str:
    """An agent's name on the wire."""
    return f"agent-{node}"


def read_secret(variables: Mapping[str, str] = os.environ) -> str:
    """The secret from the environment, or from the file that it names."""
    secret = variables.get(SECRET, "")
    if not secret and (path := variables.get(SECRET_FILE)):
        try:
            if stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
                raise PenstockError(
                    f"The secret in {path} can be read by others than its owner: `chmod 600 {path}`.",
                    code="invalid-value",
                )
            secret = read_document(Path(path)).strip()
        except (OSError, ValueError) as error:
            raise PenstockError(
                f"The secret in {path} cannot be read ({error}): name another file.", code="damaged-file"
            ) from None
    if not secret:
        raise PenstockError(f"The job's processes have no shared secret: {_MEND}.", code="option-missing")
    if not _SECRET.fullmatch(secret):
        # Keys derived from a phrase could be guessed by anyone who has seen a certificate derived from it.
        raise PenstockError(
            f"The job's secret is not a random key of 64 hexadecimal digits: {_MEND}.", code="value-out-of-range"
        )
    return secret.lower()


def derived_credentials(name: str, nodes: int, secret: str, job: str) -> Credentials:
    """The credentials of a process of a job. Those of another job with the same secret are different."""
    names = [LAUNCHER, *map(agent_name, range(1, nodes))]
    seed = hmac.digest(bytes.fromhex(secret), f"penstock launcher 2 {job}".encode(), "sha256")
    return make_credentials(names, seed)[name]
