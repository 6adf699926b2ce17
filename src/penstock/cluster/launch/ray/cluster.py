"""All use of Ray: connecting, listing live nodes, and starting an actor on one of them."""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.cluster.launch.ray.nodes import MACHINE, Node, Share
from penstock.cluster.launch.ray.task_actor import TaskActor
from penstock.cluster.launch.ray.time_limit import TimeLimit, time_limit
from penstock.errors import PenstockError
from penstock.hardware.cluster import ClusterDocument, RayOptions

ADDRESS = "RAY_ADDRESS"
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""What makes Ray listen on the loopback address alone, on any system."""
_OBJECTS = 80 << 20
"""Bytes of Ray's object store, the least it takes: no array of ours goes through it."""
_ENDING = 5.0
"""Seconds for an actor to end its task before the actor itself is ended."""


class RayCluster:
    """A connection to Ray. What it started or joined it leaves when closed; a connection that was there stays."""

    def __init__(self, ray: Any, ours: bool) -> None:
        self._ray, self._ours = ray, ours
        self._actors = 0

    @property
    def interface(self) -> str:
        """This host's address, as the nodes reach it."""
        return str(self._ray.util.get_node_ip_address())

    def nodes(self) -> list[Node]:
        """Those that live, in a fixed order."""
        living = [Node.of(said) for said in self._ray.nodes() if said["Alive"]]
        return sorted(living, key=lambda node: (node.address, node.name, node.id))

    def start_actor(self, name: str, setup: str, node: Node, share: Share) -> "RayActorHandle":
        """Have a task started on a node; it may be that it never is."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._actors += 1
        actor = self._ray.remote(TaskActor).options(
            name=f"{name}.{self._actors}",
            num_cpus=share.cores,
            num_gpus=share.gpus,
            memory=share.memory or None,
            max_restarts=0,
            max_task_retries=0,
            # One call waits for the task's end, meanwhile others are answered.
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        return RayActorHandle(self._ray, actor.remote(setup, str(Path.cwd())))

    def close(self) -> None:
        """Leave, and stop what was started here."""
        if self._ours and self._ray.is_initialized():
            self._ray.shutdown()
        self._ours = False


@dataclass(frozen=True)
class TaskEnd:
    """What became of a task: it ended with a status, could not be started, or was lost with its actor."""

    how: Literal["ended", "refused", "lost"]
    status: int = 0
    why: str = ""


class RayActorHandle:
    """An actor as its starter sees it. Nothing here waits but `end`."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._pid, self._end = actor.pid.remote(), actor.wait.remote()

    def pid(self) -> int | None:
        """The task's process, once it runs."""
        if self._ready(self._pid):
            with suppress(self._ray.exceptions.RayError):
                found: int | None = self._ray.get(self._pid)
                return found
        return None

    def look(self) -> TaskEnd | None:
        """How the task ended, or None while it runs or has not been started."""
        if not self._ready(self._end):
            return None
        try:
            status, refusal = self._ray.get(self._end)
        except self._ray.exceptions.RayError as error:
            # An actor that only cannot be reached must not go on.
            self._kill()
            return TaskEnd("lost", why=str(error).strip().splitlines()[0])
        self._kill()
        return TaskEnd("refused", why=refusal) if refusal else TaskEnd("ended", status)

    def end(self) -> None:
        """End the task, then the actor. A task that was only just started ends when its actor does."""
        if self._ready(self._pid):
            with suppress(self._ray.exceptions.RayError):
                self._ray.wait([self._actor.end.remote()], timeout=_ENDING)
        self._kill()

    def _ready(self, answer: Any) -> bool:
        return bool(self._ray.wait([answer], timeout=0)[0])

    def _kill(self) -> None:
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._actor)


def connect(cluster: ClusterDocument) -> RayCluster:
    """Join the Ray cluster that the options or RAY_ADDRESS name; if neither does, start one of this host alone."""
    address = _address(cluster.ray)
    if address is not None:
        return join(cluster.ray)
    with _environment({**_QUIET, **_LOOPBACK, **_own_token()}):
        ray = imported_ray()
        if ray.is_initialized():
            return RayCluster(ray, ours=False)
        # Every machine of the file is this one node, and it has all that they say.
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
    """Join a Ray cluster that runs: the one that is named, or the one that has a node on this host."""
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
    """Ray, or a sentence how to have it."""
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
    """Without the working folder, which Ray would put before all others on the search path of its workers."""
    from ray.job_config import JobConfig

    class InstalledModules(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            # Ray leaves the folders of the script and of the process alone where a job brings its own.
            return True

    return InstalledModules()


def _own_token() -> dict[str, str]:
    """Who is no part of the run is refused, and no token is left in the user's home.

    Ray reads these when it is imported first; later it would mix them with what it read before.
    """
    if "ray" in sys.modules or "RAY_AUTH_MODE" in os.environ:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """For Ray's own start alone. What the user has set stays."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
