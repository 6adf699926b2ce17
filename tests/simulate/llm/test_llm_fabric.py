"""Paths between devices: inside a server, over NICs, and through switches that can limit."""

from penstock.hardware.machines import Network
from penstock.simulate.llm.fabric import Fabric, Image, Seat, Servers
from refusals import refused


def _names(network: Network, source: int, target: int) -> list[str]:
    return [network.link_names[link] for link in network.path(source, target)]


def test_inside_a_server_nvlink_and_outside_nics() -> None:
    seats = [Seat(0, 0, 4), Seat(0, 4, 4), Seat(1, 0, 4)]
    network = Fabric(Servers(2, nics=8, nic_gbps=100, nvlink_gbps=1000), seats, [], 0).network(["a", "b", "c"])
    assert _names(network, 0, 1) == ["server 0 GPU 0 NVLink out", "server 0 GPU 4 NVLink in"]
    assert _names(network, 0, 2) == ["server 0 NIC 0 out", "server 1 NIC 0 in"]
    rates = dict(zip(network.link_names, network.capacities.tolist(), strict=True))
    assert rates["server 0 NIC 0 out"] == 4 * 100e9 / 8
    assert rates["server 0 GPU 0 NVLink out"] == 4 * 1000e9 / 8


def test_devices_that_share_a_nic_share_a_link() -> None:
    seats = [Seat(0, 0, 4), Seat(0, 4, 4), Seat(1, 0, 4)]
    network = Fabric(Servers(2, nics=1), seats, [], 0).network(["a", "b", "c"])
    assert _names(network, 0, 2)[0] == _names(network, 1, 2)[0] == "server 0 NIC 0 out"


def test_oversubscribed_leaves_and_pods_are_crossed_only_by_what_leaves_them() -> None:
    seats = [Seat(server, 0, 8) for server in range(8)]
    servers = Servers(8, nics=1, servers_per_leaf=2, leaves_per_pod=2, oversubscription=4.0)
    network = Fabric(servers, seats, [], 0).network([f"d{k}" for k in range(8)])
    assert _names(network, 0, 1) == ["server 0 NIC 0 out", "server 1 NIC 0 in"]
    assert _names(network, 0, 2)[1:3] == ["leaf 0 up", "leaf 1 down"]
    assert _names(network, 0, 7)[1:5] == ["leaf 0 up", "pod 0 up", "pod 1 down", "leaf 3 down"]
    rates = dict(zip(network.link_names, network.capacities.tolist(), strict=True))
    assert rates["leaf 0 up"] == 2 * 100e9 / 8 / 4
    assert rates["pod 0 up"] == 4 * 100e9 / 8 / 16


def test_equal_cost_paths_are_chosen_by_pair_and_stay() -> None:
    seats = [Seat(server, 0, 8) for server in range(8)]
    servers = Servers(8, nics=1, servers_per_leaf=2, topology="leaf-spine", routing="ecmp", spines=4)
    networks = [Fabric(servers, seats, [], 3).network([f"d{k}" for k in range(8)]) for _ in range(2)]
    paths = [
        _names(networks[0], source, target) for source in range(8) for target in range(8) if source // 2 != target // 2
    ]
    assert paths == [
        _names(networks[1], source, target) for source in range(8) for target in range(8) if source // 2 != target // 2
    ]
    assert all(len(path) == 4 and path[1].split()[-1] == path[2].split()[-1] for path in paths)
    assert len({path[1] for path in paths}) > 8


def test_paths_by_hash_need_all_devices() -> None:
    with refused("unsupported-combination"):
        Fabric(Servers(8, routing="ecmp"), [Seat(0, 0, 8)], [Image(0, 1)], 0)


def test_gpus_and_nics_that_do_not_go_into_each_other_are_refused() -> None:
    with refused("unsupported-combination"):
        Servers(1, gpus=8, nics=3)


def test_uplinks_belong_to_all_servers_of_a_leaf_but_only_in_part_to_representatives() -> None:
    servers = Servers(8, nics=1, servers_per_leaf=4, oversubscription=2.0)
    whole = Fabric(servers, [Seat(0, 0, 8), Seat(4, 0, 8)], [], 0).network(["a", "b"])
    some = Fabric(servers, [Seat(0, 0, 8), Seat(4, 0, 8)], [Image(0, 1), Image(1, 5)], 0).network(["a", "b"])
    rates = [dict(zip(each.link_names, each.capacities.tolist(), strict=True)) for each in (whole, some)]
    assert [each["leaf 0 up"] for each in rates] == [4 * 100e9 / 8 / 2, 100e9 / 8 / 2]


def test_an_image_has_its_devices_links_and_is_as_far_as_what_it_stands_for() -> None:
    servers = Servers(8, nics=1, servers_per_leaf=2, leaves_per_pod=2, oversubscription=4.0)
    seats = [Seat(0, 0, 8), Seat(1, 0, 8)]
    network = Fabric(servers, seats, [Image(0, 2), Image(1, 6)], 0).network(["a", "b"])
    assert network.machines == ("a", "b", "a elsewhere", "b elsewhere", "switch", "leaf", "pod", "fabric")
    assert _names(network, 0, 2) == ["server 0 NIC 0 out", "leaf 0 up", "leaf 0 down", "server 0 NIC 0 in"]
    assert _names(network, 0, 3)[1:-1] == ["leaf 0 up", "pod 0 up", "pod 0 down", "leaf 0 down"]
    assert _names(network, 1, 2)[1:-1] == ["leaf 0 up", "leaf 0 down"]


def test_places_are_as_far_as_they_say() -> None:
    servers = Servers(8, nics=1, servers_per_leaf=2, leaves_per_pod=2, oversubscription=4.0)
    network = Fabric(servers, [Seat(0, 0, 8)], [], 0).network(["a"])
    out = [_names(network, 0, place)[1:] for place in range(1, 5)]
    assert out == [[], [], ["leaf 0 up"], ["leaf 0 up", "pod 0 up"]]
    assert _names(network, 0, 1) == ["server 0 GPU 0 NVLink out"]
    assert _names(network, 4, 0) == ["pod 0 down", "leaf 0 down", "server 0 NIC 0 in"]
