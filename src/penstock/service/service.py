"""`penstock serve`: a service from its start to its end."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.graph.files import PRIVATE_UMASK
from penstock.graph.object_folders import address_of, is_remote
from penstock.processes import default_threads
from penstock.service import POLICIES, SHARING
from penstock.service.admission import JobDevice, rooms_here
from penstock.service.database import Database
from penstock.service.folder import Address, ServiceFolder
from penstock.service.operations import Operations, SubmissionRules
from penstock.service.policies import AGE_S, QueuePolicy
from penstock.service.scheduler import Feed, JobScheduler, Served
from penstock.service.sharing import Sharing
from penstock.service.workers.pool import WarmPool

AUTO = "auto"
_CLOSING_S = 2


@dataclass(frozen=True)
class ServiceOptions:
    """How a service is started."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 0
    policy: str = "fit"
    concurrent: int | None = None
    """Jobs at once on one device; None: by memory and throughput."""
    age_s: float = AGE_S
    """Seconds after which a waiting job goes before all others."""
    allow: tuple[Path, ...] = ()
    """Folders that jobs may name, beside the service's own and the working folder."""
    allow_modules: bool = False
    sharing: str = AUTO
    """How jobs share a device, a name of `service.sharing`."""
    ray: str | None = None
    """The address of a Ray cluster that jobs are handed to."""
    threads: int = 0
    """Threads of a job that does not give a number; 0: half of the cores."""


def serve(options: ServiceOptions, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Run a service until `stopped`, or until it was drained. Only the user can read what it and its jobs write."""
    policy: QueuePolicy = POLICIES[options.policy](options.age_s)
    with ExitStack() as stack:
        stack.callback(os.umask, os.umask(PRIVATE_UMASK))
        folder = ServiceFolder(options.folder)
        folder.hold()
        stack.callback(folder.close)
        listening = stack.enter_context(listening_at(options.host, options.port))
        feed = Feed()
        database = Database(folder.database, feed.changed)
        stack.callback(database.close)
        pool = WarmPool()
        stack.callback(pool.close)
        pool.prepare()
        if options.ray is None:
            here = rooms_here(folder, pool, options.concurrent)
            sharing = shared_devices(options.sharing, stack, folder.path, here, pool)
        else:
            from penstock.service import ray_jobs

            cluster, policy = ray_jobs.RayJobs(options.ray), ray_jobs.HandOver()
            stack.callback(cluster.close)
            sharing = Sharing(cluster.rooms(), cluster)
        rooms = sharing.rooms
        operations = Operations(
            folder, database, _rules(options, folder, tuple(dict.fromkeys(room.kind for room in rooms)))
        )
        stack.callback(operations.close)
        scheduler = JobScheduler(operations, rooms, policy, pool, say, sharing.trainers)
        scheduler.recover()
        served = Served(operations, scheduler, feed)
        stack.enter_context(answering(served, listening, folder.make_token(), options.host))
        host, port = listening.getsockname()[:2]
        folder.publish(Address(host, port))
        say(f"Serving the queue in {folder.path} at http://{host}:{port}; the token is in {folder.path / 'token'}.")
        scheduler.run(stopped)


def _rules(options: ServiceOptions, folder: ServiceFolder, kinds: tuple[str, ...]) -> SubmissionRules:
    folders = [path for path in options.allow if not is_remote(path)]
    addresses = tuple(address_of(path) for path in options.allow if is_remote(path))
    allowed = tuple(path.expanduser().resolve() for path in (folder.path, Path.cwd(), *folders))
    threads = options.threads or max(1, default_threads() // 2)
    return SubmissionRules(tuple(dict.fromkeys(allowed)), options.allow_modules, threads, folder.path, kinds, addresses)


@contextmanager
def listening_at(host: str, port: int) -> Iterator[socket.socket]:
    """The socket of the service; opened before anything else, as its port may be in use."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(found[0], found[1])
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(found[4])
    except OSError as error:
        raise PenstockError(
            f"The service cannot listen at {host}, port {port} ({error.strerror or error}): name another --host or"
            " --port.",
            code="in-use",
        ) from None
    with listening:
        yield listening


@contextmanager
def answering(served: Served, listening: socket.socket, token: str, host: str = "") -> Iterator[None]:
    """Answer HTTP requests in a thread; `host` is the address that the service was started with."""
    import uvicorn

    from penstock.service.app import make_app
    from penstock.service.gate import HttpConnection, most_pending

    config = uvicorn.Config(
        make_app(served, token, host),
        http=HttpConnection,
        ws="none",
        backlog=most_pending(),
        # A line for each malformed request would let anyone fill the disk.
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSING_S,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=[[listening]], name="http", daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield
    finally:
        served.closing = True
        server.should_exit = True
        thread.join()


def shared_devices(name: str, stack: ExitStack, folder: Path, rooms: list[JobDevice], pool: WarmPool) -> Sharing:
    """The devices as jobs share them in the way of that name; what was started for it ends with `stack`."""
    if name == AUTO:
        way = next(way for way in SHARING.values() if way.lacks(folder, rooms) is None)
    elif name in SHARING:
        way = SHARING[name]
    else:
        raise SHARING.unknown(name, AUTO)
    lacks = way.lacks(folder, rooms)
    if lacks is not None:
        others = " or ".join(each for each in SHARING if each != name)
        raise PenstockError(f"--sharing {name} cannot be used: {lacks}. Use {others}.", code="not-installed")
    return way.opened(stack, folder, rooms, pool)
