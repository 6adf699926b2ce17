"""All use of Ray: connecting, listing live nodes, and starting an actor on one of them."""

import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from penstock.cluster.launch.local import LocalProcess, started_here
from penstock.cluster.layout import Layout, TaskSpec, read_setup
from penstock.errors import Code, PenstockError
from penstock.graph.tables.shard_tasks import Map
from penstock.hardware.cluster import LOOPBACK, ClusterDocument, Machine, RayOptions

# Which node of a Ray cluster is which machine, and the resources that a task requests.

MACHINE = "machine:"
"""The prefix of a resource, machine:NAME, that makes a node that machine."""
_SLACK = 1e-6


@dataclass(frozen=True)
class Node:
    """A live node, as Ray describes it. Memory in bytes."""

    id: str
    name: str
    host: str
    address: str
    cores: float
    gpus: float
    memory: float
    machines: frozenset[str]

    @classmethod
    def of(cls, said: dict[str, Any]) -> "Node":
        """From an entry of `ray.nodes()`."""
        has = said["Resources"]
        return cls(
            said["NodeID"],
            said.get("NodeName") or said["NodeManagerAddress"],
            said["NodeManagerHostname"],
            said["NodeManagerAddress"],
            has.get("CPU", 0.0),
            has.get("GPU", 0.0),
            has.get("memory", 0.0),
            frozenset(name.removeprefix(MACHINE) for name in has if name.startswith(MACHINE)),
        )


class NodeAssignment:
    """Assigns machines to Ray nodes: by the machine's name or address, or to a spare node where that is allowed.

    A machine stays on its node as long as that lives.
    """

    def __init__(self, machines: Sequence[Machine], spares: bool) -> None:
        self._machines = {machine.name: machine for machine in machines}
        self._spares = spares
        self._nodes: dict[str, str] = {}

    def node_of(self, name: str, nodes: Sequence[Node]) -> Node | None:
        """The running node of a machine, or None where it has none."""
        by_id = {node.id: node for node in nodes}
        taken = {node_id for machine, node_id in self._nodes.items() if machine != name}
        node = by_id.get(self._nodes.get(name, ""))
        if node is None:
            found = self._candidates(self._machines[name], nodes, taken)
            node = next((each for each in found if each.id not in taken), found[0] if found else None)
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node.id
        return node

    def address_on(self, name: str, node: Node) -> str:
        """The address on a node where the machine's tasks listen: its own, unless that is missing or another host's."""
        machine = self._machines[name]
        ours = machine.address not in LOOPBACK and (name in node.machines or name in (node.name, node.host))
        return machine.address if ours else node.address

    def check(self, nodes: Sequence[Node]) -> None:
        """Refuse a Ray cluster that lacks a node or resources for a machine."""
        for machine in self._machines.values():
            if self.node_of(machine.name, nodes) is None:
                known = ", ".join(sorted(f"{node.name} ({node.address})" for node in nodes))
                raise PenstockError(
                    f"Ray has no node for machine {machine.name}: start one with"
                    f" --resources='{{\"{MACHINE}{machine.name}\": 1}}', or give the machine the name or address of one"
                    f" of these: {known}.",
                    code="infeasible",
                )
        for node in nodes:
            here = [self._machines[name] for name, node_id in self._nodes.items() if node_id == node.id]
            if problem := lacking(here, node):
                names = " and ".join(machine.name for machine in here)
                raise PenstockError(
                    f"The Ray node {node.name} has too little for {names}: {problem}.", code="infeasible"
                )

    def _candidates(self, machine: Machine, nodes: Sequence[Node], taken: set[str]) -> list[Node]:
        found = [node for node in nodes if machine.name in node.machines]
        found = found or [node for node in nodes if machine.name in (node.name, node.host)]
        if machine.address not in LOOPBACK:
            found = found or [node for node in nodes if node.address == machine.address]
        if self._spares and not any(node.id not in taken for node in found):
            found = [node for node in nodes if node.id not in taken and not lacking([machine], node)]
        return found


def lacking(machines: Sequence[Machine], node: Node) -> str:
    """The resources that a node lacks to be these machines, as a phrase; empty if it has enough."""
    asked = {
        "cores": (sum(machine.cores or 0 for machine in machines), node.cores),
        "GPUs": (sum(machine.gpus for machine in machines), node.gpus),
        "GB of memory": (sum(machine.memory_gb or 0 for machine in machines), node.memory / 1e9),
    }
    lacks = [f"{has:g} {what} of {need:g}" for what, (need, has) in asked.items() if need > has * (1 + _SLACK)]
    return ", ".join(lacks)


_COMPUTING = ("worker", "sampler")
_FINEST = 10_000
"""Ray's resolution of resources: ten-thousandths."""


@dataclass(frozen=True)
class Share:
    """The resources that one task requests from Ray. Memory is in bytes."""

    cores: float = 0.0
    gpus: float = 0.0
    memory: int = 0


def share_of(task: TaskSpec, layout: Layout, machine: Machine) -> Share:
    """Tasks that compute divide the cores and the memory among them, and workers the GPUs.

    Stores and servers mostly wait for the network and request nothing, unless there are no other tasks on the machine.
    """
    here = [each for each in layout.tasks if each.machine == machine.name]
    sharing = [each for each in here if each.kind in _COMPUTING] or here
    workers = sum(each.kind == "worker" for each in here)
    if task.id not in {each.id for each in sharing}:
        return Share()
    return Share(
        _part(machine.cores or 0, len(sharing)),
        _whole_gpus(machine.gpus, workers) if task.kind == "worker" else 0.0,
        int((machine.memory_gb or 0) * 1e9) // len(sharing),
    )


def _part(amount: float, among: int) -> float:
    """An equal part, rounded down, so that all parts together fit."""
    return math.floor(amount / among * _FINEST) / _FINEST


def _whole_gpus(gpus: int, workers: int) -> float:
    """GPUs per worker. Ray gives parts of one GPU, but not of several, so workers that share must
    divide a GPU evenly.
    """
    if gpus >= workers:
        return float(gpus // workers)
    return _part(1, math.ceil(workers / gpus)) if gpus else 0.0


# The Ray actor of one task: starts its process on the actor's node and reports how it ended. The task runs in a process
# of its own, as everywhere else, so its memory, log and exit are independent of Ray's.


class TaskActor:
    """Lives as long as its task. If it is killed, the task's standard input closes, and the task ends."""

    def __init__(self, setup: str, folder: str) -> None:
        """`folder`: where the run was started; the task runs there too if the folder exists here."""
        self._process: LocalProcess | None = None
        self._refusal = ""
        try:
            where = Path(folder)
            self._process = started_here(read_setup(setup), where if where.is_dir() else None)
        except PenstockError as error:
            self._refusal = str(error)

    def pid(self) -> int | None:
        """The number of the task's process."""
        return self._process.pid if self._process else None

    def wait(self) -> tuple[int, str]:
        """Wait for the end: the exit status, or the reason why there was no process."""
        return (self._process.wait(), "") if self._process else (0, self._refusal)

    def end(self) -> None:
        """End the task at once."""
        if self._process:
            self._process.kill()


# A time limit for calls that have none of their own.


class TimeLimit(Exception):  # noqa: N818
    """The call took too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimit in the block after so many seconds. Only the main thread can be interrupted; others are not.

    An alarm that was set before is set again afterwards, for the rest of its time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeLimit

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left - (time.monotonic() - began)), interval)


ADDRESS = "RAY_ADDRESS"
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes Ray listen on the loopback address only, on any system."""
_OBJECTS = 80 << 20
"""Bytes of Ray's object store, the least it accepts: no array of ours goes through it."""
_ENDING = 5.0
"""Seconds for an actor to end its task before the actor itself is ended."""


class RayCluster:
    """A connection to Ray. Closing it leaves what it started or joined; a connection that existed before stays."""

    def __init__(self, ray: Any, ours: bool) -> None:
        self._ray, self._ours = ray, ours
        self._actors = 0

    @property
    def interface(self) -> str:
        """This host's address, as the nodes reach it."""
        return str(self._ray.util.get_node_ip_address())

    def nodes(self) -> list[Node]:
        """The live nodes, in a fixed order."""
        living = [Node.of(said) for said in self._ray.nodes() if said["Alive"]]
        return sorted(living, key=lambda node: (node.address, node.name, node.id))

    def start_actor(self, name: str, setup: str, node: Node, share: Share) -> "RayActorHandle":
        """Start a task's actor on a node; Ray may never schedule it."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._actors += 1
        actor = self._ray.remote(TaskActor).options(
            name=f"{name}.{self._actors}",
            num_cpus=share.cores,
            num_gpus=share.gpus,
            memory=share.memory or None,
            max_restarts=0,
            max_task_retries=0,
            # One call waits for the task's end while others are answered.
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        return RayActorHandle(self._ray, actor.remote(setup, str(Path.cwd())))

    def call(self, function: Callable[[Any], Any], given: Iterable[Any], memory: int, ahead: int) -> Iterator[Any]:
        """The results of a function for each of the given in order; Ray runs it on any node, so many `ahead`."""
        call = self._ray.remote(_answered).options(num_cpus=1, memory=memory or None, max_retries=_RETRIES)
        rest, waiting = iter(given), deque[Any]()
        try:
            while True:
                waiting.extend(call.remote(function, each) for each in islice(rest, ahead - len(waiting)))
                if not waiting:
                    return
                found = self._ray.get(waiting[0])
                waiting.popleft()
                if isinstance(found, _Refusal):
                    raise PenstockError(found.sentence, code=found.code)
                yield found
        except self._ray.exceptions.RayError as error:
            if isinstance(error, self._ray.exceptions.RayTaskError):
                # What the function raised itself.
                raise
            raise PenstockError(
                f"The Ray cluster has lost a task {_RETRIES + 1} times ({str(error).strip().splitlines()[0]}): see the"
                " logs of Ray on its nodes; the same command then goes on.",
                code="peer-lost",
            ) from None
        finally:
            # Nothing may write any more once the caller tidies.
            for each in waiting:
                self._ray.cancel(each, force=True)
            if waiting:
                self._ray.wait(list(waiting), num_returns=len(waiting), timeout=_CANCELLED)

    def close(self) -> None:
        """Leave, and stop what was started here."""
        if self._ours and self._ray.is_initialized():
            self._ray.shutdown()
        self._ours = False


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended: with a status, without having been started, or lost with its actor."""

    how: Literal["ended", "refused", "lost"]
    status: int = 0
    why: str = ""


class RayActorHandle:
    """An actor as its starter sees it. Only `end` waits."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._pid, self._end = actor.pid.remote(), actor.wait.remote()

    def pid(self) -> int | None:
        if self._ready(self._pid):
            with suppress(self._ray.exceptions.RayError):
                found: int | None = self._ray.get(self._pid)
                return found
        return None

    def look(self) -> TaskEnd | None:
        if not self._ready(self._end):
            return None
        try:
            status, refusal = self._ray.get(self._end)
        except self._ray.exceptions.RayError as error:
            # An actor that cannot be reached must not continue.
            self._kill()
            return TaskEnd("lost", why=str(error).strip().splitlines()[0])
        self._kill()
        return TaskEnd("refused", why=refusal) if refusal else TaskEnd("ended", status)

    def end(self) -> None:
        """End the task, then the actor. A task that has only just been started ends with its actor."""
        if self._ready(self._pid):
            with suppress(self._ray.exceptions.RayError):
                self._ray.wait([self._actor.end.remote()], timeout=_ENDING)
        self._kill()

    def _ready(self, answer: Any) -> bool:
        return bool(self._ray.wait([answer], timeout=0)[0])

    def _kill(self) -> None:
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._actor)


# Tasks of an import: calls that Ray runs on any node, and again where it lost one.

_RETRIES = 8
_AHEAD = 4
"""Calls that wait for each core."""
_ANSWERED = 10.0
"""Seconds for the head node of a cluster to accept a connection."""
_CANCELLED = 10.0
"""Seconds for calls that are needed no more to end."""


@dataclass(frozen=True)
class _Refusal:
    """The error of a call, as its caller is to raise it."""

    sentence: str
    code: Code


@contextmanager
def ray_tasks(address: str, memory_gb: float = 0.0) -> Iterator[Map]:
    """Tasks that run on the nodes of a running Ray cluster, each with a core and so much memory."""
    _check_address(address)
    ray = join(RayOptions(address=address))
    try:
        fitting = [node for node in ray.nodes() if node.cores >= 1 and node.memory >= memory_gb * 1e9]
        if not fitting:
            raise PenstockError(
                f"No node of the Ray cluster at {address} has a core and {memory_gb:g} GB of memory for a task: start"
                " such a node, or give less as --memory-gb.",
                code="infeasible",
            )
        cores = int(sum(node.cores for node in fitting))
        # Ray prints what it has to say of lost nodes where a command prints its answer.
        with redirect_stdout(sys.stderr):
            yield lambda function, tasks: ray.call(function, tasks, int(memory_gb * 1e9), _AHEAD * cores)
    finally:
        ray.close()


def _check_address(address: str) -> None:
    """Refuse what no Ray cluster answers at: Ray itself would search it for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    problem = "it is not HOST:PORT"
    if host and port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), _ANSWERED).close()
        except (OSError, OverflowError, UnicodeError) as error:
            problem = str(error)
        else:
            return
    raise PenstockError(
        f"No Ray cluster answers at --ray {address} ({problem}): give the address that `ray start --head` has printed,"
        " or auto on a node of the cluster.",
        code="peer-lost",
    )


def _answered(function: Callable[[Any], Any], given: Any) -> Any:
    """What a call returns, or why it refuses: errors do not travel as objects."""
    try:
        return function(given)
    except PenstockError as error:
        return _Refusal(str(error), error.code)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        reason = error.strerror or str(error)
        return _Refusal(
            f"The node {os.uname().nodename} cannot read or write{where}: {reason}. Mend that; the same command then"
            " goes on.",
            "write-failed",
        )


def connect(cluster: ClusterDocument) -> RayCluster:
    """Join the Ray cluster that the options or RAY_ADDRESS name; if neither does, start one on this host."""
    address = _address(cluster.ray)
    if address is not None:
        return join(cluster.ray)
    with _environment({**_QUIET, **_LOOPBACK, **_own_token()}):
        ray = imported_ray()
        if ray.is_initialized():
            return RayCluster(ray, ours=False)
        # Every machine of the file is this one node, which has all their resources.
        cores = sum(machine.cores or 0 for machine in cluster.machines)
        memory = int(sum(machine.memory_gb or 0 for machine in cluster.machines) * 1e9)
        _init(
            ray,
            cluster.ray.start_timeout,
            address="local",
            num_cpus=max(cores, os.cpu_count() or 1),
            _memory=memory or None,
            object_store_memory=_OBJECTS,
            resources={MACHINE + machine.name: 1 for machine in cluster.machines},
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
        )
    return RayCluster(ray, ours=True)


def join(options: RayOptions) -> RayCluster:
    """Join a running Ray cluster: the one that is named, or the one that has a node on this host."""
    ray = imported_ray()
    if ray.is_initialized():
        return RayCluster(ray, ours=False)
    address = _address(options) or "auto"
    if address.startswith("ray://"):
        raise PenstockError(
            f"{address} is an address for Ray clients, but tasks must be able to reach the controller: start the run"
            " on a node of the cluster, with ray.address auto.",
            code="unsupported-combination",
        )
    with _environment(_QUIET):
        _init(ray, options.start_timeout, address=address)
    return RayCluster(ray, ours=True)


def imported_ray() -> Any:
    """Ray; if it is not installed, an error that says how to install it."""
    try:
        import ray
        import ray.exceptions
        import ray.util
    except ImportError:
        raise PenstockError(
            "Ray is not installed: install it with `pip install 'penstock[ray]'`.", code="not-installed"
        ) from None
    return ray


def _address(options: RayOptions) -> str | None:
    return options.address or os.environ.get(ADDRESS) or None


def _init(ray: Any, limit: float, address: str, **more: Any) -> None:
    try:
        with time_limit(limit):
            ray.init(address=address, log_to_driver=False, configure_logging=False, job_config=_job_config(), **more)
    except Exception as error:
        # Ray raises a plain Exception where its own processes do not start in time.
        said = f"it took more than {limit:g} s" if isinstance(error, TimeLimit) else " ".join(str(error).split())[:500]
        raise PenstockError(
            f"Ray cannot be reached or started at {address} ({said}): start a node with `ray start --head`, name one in"
            " ray.address or RAY_ADDRESS, or raise ray.start_timeout in the cluster file.",
            code="peer-lost",
        ) from None


def _job_config() -> Any:
    """A configuration without the working folder, which Ray would put first on the search path of its workers."""
    from ray.job_config import JobConfig

    class InstalledModules(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            # Ray does not add the folders of the script and of the process if a job has its own configuration.
            return True

    return InstalledModules()


def _own_token() -> dict[str, str]:
    """Settings by which other processes are refused, without leaving a token in the user's home.

    Ray reads these when it is first imported; later it would mix them with what it read before.
    """
    if "ray" in sys.modules or "RAY_AUTH_MODE" in os.environ:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for Ray's own start only. Those that the user has set are kept."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
