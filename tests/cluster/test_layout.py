"""Which task runs where, for all sorts of clusters."""

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from penstock.cluster.layout import Setup, lay_out, read_setup, without_machine
from penstock.hardware.cluster import ClusterDocument, Machine
from refusals import refused

machine = st.tuples(st.integers(0, 4), st.floats(0.1, 10.0))


@st.composite
def clusters(draw):
    """Machines that differ, at least one with a worker."""
    drawn = draw(st.lists(machine, min_size=1, max_size=6).filter(lambda each: any(workers for workers, _ in each)))
    named = [Machine(name=f"m{i}", workers=workers, speed=speed) for i, (workers, speed) in enumerate(drawn)]
    more = {"samplers": draw(st.integers(0, 2)), "servers": draw(st.integers(1, 3))}
    return ClusterDocument(machines=named, reduce=draw(st.sampled_from(["all-reduce", "servers"])), **more)


@given(clusters(), st.integers(1, 12))
def test_everything_has_a_place(cluster, parts):
    layout = lay_out(cluster, parts)
    names = [task.id for task in layout.tasks]
    assert len(set(names)) == len(names)
    places = {each.name: each.address for each in cluster.machines}
    assert all(places[task.machine] == task.address for task in layout.tasks)
    stores = {task.id: task for task in layout.of_kind("store")}
    assert sorted(part for task in stores.values() for part in task.parts) == list(range(parts))
    assert [part in stores[owner].parts for part, owner in enumerate(layout.owners)] == [True] * parts
    held = [len(task.parts) for task in stores.values()]
    assert max(held) - min(held) <= 1
    assert len(stores) == min(parts, len(cluster.machines))


@given(clusters(), st.integers(1, 12))
def test_workers_and_those_who_serve_them(cluster, parts):
    layout = lay_out(cluster, parts)
    workers = layout.of_kind("worker")
    assert [task.rank for task in workers] == list(range(cluster.workers)) and layout.world == cluster.workers
    assert sum(layout.shares) == approx(1.0)
    speeds = {each.name: each.speed for each in cluster.machines}
    each = [share / speeds[task.machine] for share, task in zip(layout.shares, workers, strict=True)]
    assert each == approx([each[0]] * len(each))
    by_store = {task.machine: task.parts for task in layout.of_kind("store")}
    for task in workers:
        assert task.parts == by_store.get(task.machine, [])
        helpers = [other for other in layout.of_kind("sampler") if other.id in layout.samplers_of(task.rank)]
        assert len(helpers) == cluster.samplers
        assert {other.machine for other in helpers} <= {task.machine}
    servers = layout.of_kind("server")
    assert [task.rank for task in servers] == list(range(cluster.servers if cluster.reduce == "servers" else 0))


def test_a_setup_survives_the_pipe():
    cluster = ClusterDocument(machines=[Machine(name="a"), Machine(name="b", workers=2)])
    layout = lay_out(cluster, 3)
    setup = Setup(
        task=layout.tasks[-1],
        incarnation=2,
        credentials="{}",
        controller="tcp://127.0.0.1:5",
        run="/tmp/run",
        partition="/tmp/parts",
        job={"epochs": 3, "fanouts": [4, {"a": 1}]},
        cluster=cluster,
        layout=layout,
        addresses={"store-a": "tcp://127.0.0.1:6"},
    )
    line = setup.model_dump_json()
    assert "\n" not in line and read_setup(line) == setup


def replicated(*replicas, parts=2):
    """A layout of three machines, the last of which holds no part."""
    machines = [{"name": f"m{number}"} for number in range(3)]
    return lay_out(ClusterDocument(machines=machines, replicas=replicas), parts)


def test_a_machine_with_replicas_alone_has_a_store():
    layout = replicated({"part": 1, "machine": "m2"})
    assert [task.id for task in layout.of_kind("store")] == ["store-m0", "store-m1", "store-m2"]
    assert layout.owners == ["store-m0", "store-m1"] and layout.of_kind("store")[2].parts == []


def test_replicas_that_cannot_be():
    for replica, said in (
        ({"part": 0, "machine": "m0"}, "invalid-value replicas[0] owns"),
        ({"part": 2, "machine": "m0"}, "invalid-value replicas[0] 0..1"),
        ({"part": 0, "machine": "m2", "rows": 0.5}, "invalid-value replicas[0] m2 all"),
    ):
        with refused(said):
            replicated(replica)


def test_without_a_machine_its_replicas_go_and_so_do_those_at_their_new_owner():
    machines = [{"name": f"m{number}"} for number in range(3)]
    replicas = [{"part": 0, "machine": "m2"}, {"part": 1, "machine": "m0"}, {"part": 1, "machine": "m2"}]
    cluster = ClusterDocument(machines=machines, replicas=replicas)
    rest = without_machine(cluster, "m0", 3)
    # Parts 0 and 1 are now m1's, part 2 is m2's.
    assert [(each.part, each.machine) for each in rest.replicas] == [(0, "m2"), (1, "m2")]
    assert lay_out(rest, 3).owners == ["store-m1", "store-m1", "store-m2"]
