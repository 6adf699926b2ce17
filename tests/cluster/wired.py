"""Members of a run without processes: their posts meet in this one."""

from types import SimpleNamespace

from penstock.cluster.layout import CONTROLLER, Setup, lay_out
from penstock.cluster.member import Member
from penstock.cluster.worker.cut_graph import RowExchange
from penstock.cluster.worker.worker_group import ClusterWorkerGroup
from penstock.hardware.cluster import ClusterDocument, FailureOptions, Machine
from penstock.wire.endpoint import Endpoint
from penstock.wire.transport.tls import Credentials, make_credentials


def template_for(workers=2, folder="/nowhere", patience=5.0, **fields):
    """What every task of a small cluster is told beside its name."""
    named = {name: fields.pop(name) for name in ("restarts", "start_patience") if name in fields}
    failure = FailureOptions(**{"patience": patience, "restarts": 2, **named})
    cluster = ClusterDocument(machines=[Machine(name="a", workers=workers)], failure=failure, **fields)
    layout = lay_out(cluster, 1)
    return Setup(
        task=layout.tasks[0],
        incarnation=0,
        credentials="",
        controller="",
        run=str(folder),
        partition="/nowhere",
        job={},
        cluster=cluster,
        layout=layout,
        addresses={},
    )


def wired(template, handlers, ranks):
    """A controller's post with some handlers, and members for workers of these ranks."""
    workers = {task.rank: task for task in template.layout.of_kind("worker")}
    keys: dict[str, Credentials] = make_credentials([CONTROLLER, *(task.id for task in template.layout.tasks)])
    endpoint = Endpoint(keys[CONTROLLER], "127.0.0.1", template.cluster.wire, handler_threads=4)
    for kind, handler in handlers.items():
        endpoint.serve(kind, handler)
    members = []
    for rank in ranks:
        told = {"task": workers[rank], "credentials": keys[workers[rank].id].to_json(), "controller": endpoint.address}
        members.append(Member(template.model_copy(update=told)))
    for member in members:
        for other in members:
            if other is not member:
                member.endpoint.meet(other.setup.task.id, other.endpoint.address)
    return endpoint, members


def team_of(member):
    """A worker's view of the others, without a graph."""
    return ClusterWorkerGroup(member, SimpleNamespace(exchange=RowExchange(member)), None)
