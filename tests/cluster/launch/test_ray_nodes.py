"""Machines to nodes, and what tasks ask of them."""

import pytest
from setups import cluster_of

from penstock.cluster.launch.ray_cluster import Node, NodeAssignment, Share, lacking, share_of
from penstock.cluster.layout import lay_out
from penstock.hardware.cluster import Machine
from refusals import refused


def node(id, address="10.0.0.1", name="", host="", cores=4.0, gpus=0.0, memory=8e9, machines=()):
    return Node(id, name or address, host or f"host-{id}", address, cores, gpus, memory, frozenset(machines))


def test_a_node_is_read_from_what_ray_says():
    said = {
        "NodeID": "ff",
        "NodeManagerAddress": "10.0.0.7",
        "NodeManagerHostname": "big",
        "NodeName": "",
        "Resources": {"CPU": 3.0, "GPU": 2.0, "memory": 5e9, "machine:m1": 1.0, "node:10.0.0.7": 1.0},
    }
    assert Node.of(said) == Node("ff", "10.0.0.7", "big", "10.0.0.7", 3.0, 2.0, 5e9, frozenset({"m1"}))


def test_a_label_goes_before_a_name_and_a_name_before_an_address():
    labelled, named, there = node("a", machines=["m"]), node("b", host="m"), node("c", "10.0.0.9")
    machine = Machine(name="m", address="10.0.0.9")
    assert NodeAssignment([machine], False).node_of("m", [there, named, labelled]) == labelled
    assert NodeAssignment([machine], False).node_of("m", [there, named]) == named
    assert NodeAssignment([machine], False).node_of("m", [there]) == there
    assert NodeAssignment([Machine(name="m")], False).node_of("m", [there, node("d", "127.0.0.1")]) is None


def test_a_machine_stays_on_its_node_while_that_lives_and_then_takes_another_of_its_name():
    first, second = node("a", machines=["m"]), node("b", machines=["m"])
    assignment = NodeAssignment([Machine(name="m")], False)
    assert assignment.node_of("m", [second]) == second
    assert assignment.node_of("m", [first, second]) == second
    assert assignment.node_of("m", [first]) == first
    assert assignment.node_of("m", []) is None


def test_two_machines_of_one_address_take_different_nodes_if_there_are_two():
    nodes = [node("a"), node("b")]
    assignment = NodeAssignment([Machine(name=name, address="10.0.0.1") for name in ("m", "n", "o")], False)
    assert [assignment.node_of(name, nodes).id for name in ("m", "n", "o")] == ["a", "b", "a"]


def test_a_spare_node_is_taken_only_if_allowed_free_and_large_enough():
    machine, other = Machine(name="m", address="10.0.0.1", cores=4), Machine(name="n", address="10.0.0.2")
    nodes = [node("b", "10.0.0.2"), node("c", "10.0.0.3", cores=2.0), node("d", "10.0.0.4")]
    for spares, expected in ((True, "d"), (False, None)):
        assignment = NodeAssignment([machine, other], spares)
        assert assignment.node_of("n", nodes).id == "b"
        found = assignment.node_of("m", nodes)
        assert (found.id if found else None) == expected


def test_tasks_listen_at_the_nodes_address_unless_the_machine_has_one_on_that_node():
    assignment = NodeAssignment([Machine(name="m", address="10.1.0.1"), Machine(name="n")], True)
    assert assignment.address_on("m", node("a", "10.0.0.1", machines=["m"])) == "10.1.0.1"
    assert assignment.address_on("m", node("a", "10.0.0.1")) == "10.0.0.1"
    assert assignment.address_on("n", node("a", "10.0.0.1", machines=["n"])) == "10.0.0.1"
    assert assignment.address_on("n", node("a", "127.0.0.1", machines=["n"])) == "127.0.0.1"


def test_what_a_node_lacks_is_said():
    big = Machine(name="m", cores=8, gpus=1, memory_gb=9)
    assert lacking([big], node("a")) == "4 cores of 8, 0 GPUs of 1, 8 GB of memory of 9"
    assert lacking([Machine(name="m", cores=4, memory_gb=8)], node("a")) == ""
    with refused("infeasible m n 4 cores 6"):
        NodeAssignment([Machine(name=n, cores=3) for n in "mn"], False).check([node("a", machines=["m", "n"])])
    with refused("infeasible x --resources= 10.0.0.1"):
        NodeAssignment([Machine(name="x")], False).check([node("a")])


def test_those_that_compute_share_a_machine_and_never_ask_for_more_than_there_is():
    machines = [
        Machine(name="m", workers=3, cores=8, gpus=7, memory_gb=1),
        Machine(name="n", workers=2, gpus=1),
        Machine(name="o", workers=0, cores=2),
    ]
    cluster = cluster_of(*machines, samplers=1)
    layout = lay_out(cluster, 3)
    shares = {task.id: share_of(task, layout, machines["mno".index(task.machine)]) for task in layout.tasks}
    assert shares["worker-0"] == Share(1.3333, 2.0, 166_666_666)
    assert shares["sampler-0-0"] == Share(1.3333, 0.0, 166_666_666)
    assert shares["worker-3"] == Share(0.0, 0.5, 0)
    assert shares["store-m"] == Share()
    assert shares["store-o"] == Share(2.0)
    assert sum(share.cores for name, share in shares.items() if name != "store-o") <= 8


@pytest.mark.parametrize("workers, gpus, each", [(3, 2, 0.5), (5, 2, 0.3333), (7, 3, 0.3333), (4, 2, 0.5), (3, 0, 0.0)])
def test_workers_that_share_gpus_fit_them(workers, gpus, each):
    """A part of a GPU lies on one: so many of them as there are workers must have room."""
    machine = Machine(name="m", workers=workers, gpus=gpus)
    layout = lay_out(cluster_of(machine, share_gpus=True), 1)
    shares = {share_of(task, layout, machine).gpus for task in layout.of_kind("worker")}
    assert shares == {each}
    assert not each or gpus * int(1 / each) >= workers
