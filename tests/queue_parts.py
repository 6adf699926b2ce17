"""A service in pieces: its database, its operations and its scheduler, with a real port but without a process."""

import http.client
import json
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.service import POLICIES
from penstock.service.admission import JobDevice
from penstock.service.database import Database
from penstock.service.folder import ServiceFolder
from penstock.service.operations import Operations, SubmissionRules
from penstock.service.policies import DeviceRoom
from penstock.service.ray_jobs import HandOver
from penstock.service.scheduler import Feed, JobScheduler, Served
from penstock.service.service import answering, listening_at
from penstock.service.workers.pool import WarmPool


@dataclass
class Parts:
    """What `service.serve` puts together."""

    folder: ServiceFolder
    database: Database
    operations: Operations
    scheduler: JobScheduler
    feed: Feed
    pool: WarmPool

    def close(self):
        """Let go of the folder; whoever has brought the pool closes it."""
        if self.folder.is_held:
            self.operations.close()
            self.database.close()
            self.folder.close()


def make_parts(folder, allowed=(), modules=False, host_bytes=4 << 30, pool=None, rooms=None, trainers=None, ray=False):
    """The parts of a service on a processor of two cores; it runs no job before its scheduler ticks."""
    service = ServiceFolder(folder)
    service.hold()
    feed = Feed()
    database = Database(service.database, lambda record: feed.add("job", record.shown()))
    rules = SubmissionRules((service.path, *allowed), modules, 1, service.path, ("cpu",))
    operations = Operations(service, database, rules)
    device = DeviceRoom(name="cpu", kind="cpu", host_bytes=host_bytes, cores=2.0)
    rooms = [JobDevice(device, {}, "processor")] if rooms is None else rooms
    pool = WarmPool() if pool is None else pool
    policy = HandOver() if ray else POLICIES["fit"]()
    scheduler = JobScheduler(operations, rooms, policy, pool, lambda line: None, trainers)
    return Parts(service, database, operations, scheduler, feed, pool)


class Answer:
    """What came back: `status`, `headers` and the body."""

    def __init__(self, response):
        self.status, self.headers, self.text = response.status, response.headers, response.read().decode()

    def json(self):
        return json.loads(self.text)


class Client:
    """Requests to a service on this host, as any program could make them."""

    def __init__(self, port, token):
        self.port, self.headers = port, {"Authorization": f"Bearer {token}"}

    def request(self, method, path, body=None, headers=None, fields=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {**self.headers, **(headers or {})}
        if fields is not None:
            body, sent["Content-Type"] = json.dumps(fields), "application/json"
        try:
            connection.request(method, path, body, sent)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, fields=None, **more):
        return self.request("POST", path, fields=fields, **more)


@contextmanager
def answering_parts(parts, token, host=""):
    """A client of the parts, which answer at a free port."""
    with listening_at("127.0.0.1", 0) as listening:
        served = Served(parts.operations, parts.scheduler, parts.feed)
        with answering(served, listening, token, host):
            yield Client(listening.getsockname()[1], token)
