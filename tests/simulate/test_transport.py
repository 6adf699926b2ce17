"""What flows take below the fluid: never less than as a fluid, exactly that without a transport, by its parameters."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_jobs import random_case

from penstock.errors import PenstockError
from penstock.graph.documents import validated
from penstock.hardware.cluster import Background, ClusterDocument, TransportOptions
from penstock.hardware.machines import machines_of, racks, star, with_estimated_tenants
from penstock.simulate import POLICIES, critical_path, lower_bound, simulate
from penstock.simulate.document import WorkloadDocument
from penstock.simulate.engine import Executor
from penstock.simulate.scenario import build_scenario
from penstock.simulate.simulation import Simulator
from penstock.simulate.transport import hashed_again
from penstock.simulate.workload import WorkloadBuilder

FEW = settings(max_examples=25, deadline=None)
HUNDRED_GBPS = 12.5e9


def together(ends, size, iterations=1):
    """Flows of one size that begin together, and where their ends are."""
    building = WorkloadBuilder()
    for number, _ in enumerate(ends):
        source = building.task(f"a{number}", "from", 0.0)
        building.flow(source, building.task(f"b{number}", "to", 0.0), size, "data")
    return building.build(), np.array(ends).reshape(-1)


def taken(network, ends, size, policy="fair", iterations=1):
    load, places = together(ends, size)
    return simulate(load, network, places, iterations, policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_new_connection_of_tcp_in_numbers(policy):
    # 1 MB at 1 MB/s; 2 hops of 15 ms; packets of 10 kB, of which 2 are sent at first.
    options = TransportOptions(hop_us=15_000, packet_bytes=10_000, window=2)
    network = racks([0, 0], [1e6] * 2, [1e6] * 2, transport=options)
    found = taken(network, [(0, 1)], 1e6, policy, iterations=2)
    trip, latency = 4 * 0.015, 2 * 0.015 + 0.01
    # A handshake, then rounds of 20 and 40 kB that end before their answers: 60 ms of trip less 20 and less 40.
    slow = trip + (trip - 0.02) + (trip - 0.04)
    assert found.late.reshape(-1) == pytest.approx([latency + slow, latency])
    assert found.makespan == pytest.approx(2.0 + 2 * latency + slow)


def test_credits_come_back_after_one_round_trip():
    options = TransportOptions(kind="credit", hop_us=15_000, packet_bytes=10_000, window=2)
    network = racks([0, 0], [1e6] * 2, [1e6] * 2, transport=options)
    assert taken(network, [(0, 1)], 1e6).late[0, 0] == pytest.approx(0.04 + 0.06 - 0.02)


def test_a_path_that_was_idle_starts_slowly_again():
    building = WorkloadBuilder()
    one, two = building.task("one", "work", 0.0), building.task("two", "work", 1.0)
    building.flow(one, two, 1e5, "data")
    building.flow(two, one, 1e5, "back", arrival_lag=1)
    options = TransportOptions(hop_us=10_000, packet_bytes=10_000, window=2)
    network = racks([0, 0], [1e6] * 2, [1e6] * 2, transport=options)
    late = [
        simulate(building.build(), replace(network, transport=options.model_copy(update={"timeout_ms": timeout})),
                 np.array([0, 1]), 2).late[:, 0]
        for timeout in (500.0, 5000.0)
    ]  # fmt: skip
    assert late[0][1] < late[0][0]  # without a handshake
    assert late[0][1] > late[1][1] == pytest.approx(0.03)


def test_what_is_below_a_hundredth_is_left_out():
    network = racks([0, 0], [1e6] * 2, [1e6] * 2, transport=TransportOptions(hop_us=100, packet_bytes=100, window=99))
    assert taken(network, [(0, 1)], 1e6).makespan == taken(network.as_fluid(), [(0, 1)], 1e6).makespan
    assert taken(network, [(0, 1)], 1e4).makespan > taken(network.as_fluid(), [(0, 1)], 1e4).makespan


TRANSPORTS = st.builds(
    TransportOptions,
    kind=st.just("tcp"),
    hop_us=st.sampled_from([0.0, 1e3, 1e5, 1e6]),
    packet_bytes=st.just(64),
    window=st.integers(1, 20),
    buffer_kb=st.sampled_from([None, 1e-3, 1.0]),
    timeout_ms=st.sampled_from([1.0, 1e3]),
    seed=st.integers(0, 9),
)


@given(TRANSPORTS, st.integers(1, 8), st.sampled_from([10.0, 1e3, 1e5]), st.sampled_from(list(POLICIES)))
@FEW
def test_flows_are_never_faster_than_a_fluid_and_slower_with_longer_round_trips(options, count, size, policy):
    ends = [(k, count) for k in range(count)]
    rates = [1e3] * (count + 1)
    fluid = star(rates, rates)
    times = [
        taken(replace(fluid, transport=options.model_copy(update={"hop_us": hop})), ends, size, policy).ends[0]
        for hop in (options.hop_us, options.hop_us + 1e4, 2 * options.hop_us + 1e5)
    ]
    if options.buffer_kb is None:
        # A longer round trip carries more, so that it may spare a timeout.
        assert (times[0] <= times[1] + 1e-12).all()
        assert (times[1] <= times[2] + 1e-12).all()
    assert (taken(fluid, ends, size, policy).ends[0] <= times[0] + 1e-12).all()


@given(st.integers(0, 10_000), TRANSPORTS)
@FEW
def test_no_transport_beats_the_bound_and_records_change_nothing(seed, options):
    load, network, placement, amounts = random_case(seed)
    plain = simulate(load, network, placement, amounts, "fair")
    below = replace(network, transport=options)
    found = simulate(load, below, placement, amounts, "fair", segments=True)
    assert found.makespan >= lower_bound(found.case) * (1 - 1e-9)
    assert found.makespan == Simulator(load, below, amounts, "fair").makespan(placement)
    assert simulate(load, replace(network, transport=None), placement, amounts, "fair").makespan == plain.makespan
    steps = critical_path(found)
    assert sum(step.end - step.start for step in steps) == pytest.approx(found.makespan)
    # What crossed a link is what flows sent at their rates until their last byte.
    for flow in range(load.flows):
        if found.case.routes.flow_path[flow] >= 0:
            sent = sum((each.end - each.start) * each.rate for each in found.segments(flow, 0))
            assert sent == pytest.approx(amounts.sizes[0, flow], abs=1e-6)


@pytest.mark.parametrize("policy", ["oes", "fair", "iteration-first"])
@pytest.mark.parametrize("kind", ["tcp", "credit"])
def test_one_of_many_equal_flows_stands_for_all(policy, kind):
    # All-to-all between racks: as with every flow simulated.
    ends = [(k, other) for k in range(6) for other in range(6) if k != other]
    options = TransportOptions(kind=kind, hop_us=1e5, packet_bytes=100, window=3)
    network = racks([0, 0, 0, 1, 1, 1], [1e3] * 6, [1e3] * 6, 2.0, transport=options)
    load, places = together(ends, 5e3)
    simulator = Simulator(load, network, 4, policy)
    case = simulator.case(places)
    terms = simulator.policy.terms(case)
    few, all_flows = (Executor(many).run(simulator.policy.family, case, terms, times=True) for many in (1, 1 << 60))
    assert few.makespan == pytest.approx(all_flows.makespan)
    assert few.record.late == pytest.approx(all_flows.record.late)
    assert few.record.late.any()
    assert few.events == all_flows.events


def test_an_incast_waits_for_timeouts_by_its_seed():
    ends = [(k, 15) for k in range(15)]
    options = TransportOptions(hop_us=10, buffer_kb=16)
    network = racks([0] * 16, [12.5e6] * 16, [12.5e6] * 16, transport=options)
    fluid = taken(network.as_fluid(), ends, 15e3).makespan
    times = [taken(each, ends, 15e3).makespan for each in hashed_again(network)]
    assert times == [taken(each, ends, 15e3).makespan for each in hashed_again(network)]
    assert len(set(times)) > 1
    assert np.median(times) > fluid + 0.1
    larger = replace(network, transport=TransportOptions(hop_us=10, buffer_kb=4000))
    assert max(taken(each, ends, 15e3).makespan for each in hashed_again(larger)) < fluid + 0.01


def test_only_ports_of_switches_overflow_and_each_lane_has_its_own():
    options = TransportOptions(hop_us=10, buffer_kb=16, timeout_ms=1000)
    rates = [12.5e6] * 32
    # 15 flows leave one machine; what waits there is not lost.
    spread = racks([0] * 32, rates, rates, transport=options)
    load, places = together([(0, k + 1) for k in range(15)], 15e3)
    assert max(simulate(load, each, places).makespan for each in hashed_again(spread)) < 1
    # 15 flows cross an uplink as wide as a machine's link: a port that overflows, and 15 that hardly do.
    for lanes, paths, stalls in ((1, 1, True), (15, 1, False), (15, 8, False)):
        transport = options.model_copy(update={"uplinks": lanes, "paths": paths})
        network = racks([0] * 16 + [1] * 16, rates, rates, 16.0, transport=transport)
        load, places = together([(k, 16 + k) for k in range(15)], 15e3)
        times = [simulate(load, each, places).makespan for each in hashed_again(network)]
        assert (np.median(times) > 1) == stalls


# The published limits of a packet simulator for a transport of credits (htsim, EQDS): 100 Gb/s, 1 µs a hop, packets of
# 4,150 bytes, a window of 50, flows of 2 MB. Of its fat tree of three tiers each pod is a rack here, whose links to the
# four cores stand for two hops of 1 µs each.


def permuted(paths, seed, step):
    options = TransportOptions(
        kind="credit", hop_us=1.5, packet_bytes=4150, window=50, uplinks=4, paths=paths, seed=seed
    )
    rates = [HUNDRED_GBPS] * 16
    network = racks([k // 4 for k in range(16)], rates, rates, transport=options)
    found = taken(network, [(k, (k + step) % 16) for k in range(16)], 2e6)
    assert found.link_use.max() <= 1 + 1e-9
    assert lower_bound(found.case) <= found.makespan * (1 + 1e-9)
    return found.makespan


def test_one_flow_and_an_incast_are_within_the_packet_simulators_limits():
    options = TransportOptions(kind="credit", hop_us=1.0, packet_bytes=4150, window=50)
    rates = [HUNDRED_GBPS] * 16
    network = racks(list(range(16)), rates, rates, transport=options)
    assert 160e-6 < taken(network, [(0, 1)], 2e6).makespan <= 180e-6
    assert 2400e-6 <= taken(network, [(k, 15) for k in range(15)], 2e6).makespan <= 2500e-6


def test_permutations_are_within_the_packet_simulators_limits():
    many, one = ([permuted(paths, seed, 4) for seed in range(32)] for paths in (128, 1))
    assert max(many) <= 210e-6
    assert 160e-6 < min(one) < np.median(one) < np.quantile(one, 0.95) <= max(one) <= 1300e-6
    assert np.median(one) > 2 * np.median(many)


@pytest.mark.parametrize("policy", ["oes", "fair", "fifo", "omcoflow"])
def test_links_of_equal_cost_carry_what_their_uplink_does(policy):
    options = TransportOptions(kind="credit", hop_us=0, packet_bytes=64, uplinks=3, paths=5, seed=2)
    network = racks([0, 0, 1, 1], [4e3] * 4, [4e3] * 4, transport=options)
    load, places = together([(0, 2), (1, 3), (2, 0), (0, 1)], 1e4)
    found = simulate(load, network, places, 2, policy, segments=True)
    carried = dict(zip(network.link_names, found.link_bytes.tolist(), strict=True))
    for name in ("rack 0 up", "rack 1 up", "rack 1 down"):
        assert sum(carried[f"{name} {lane}"] for lane in (1, 2, 3)) == pytest.approx(carried[name])
    assert found.makespan >= simulate(load, network.as_fluid(), places, 2, policy).makespan * (1 - 1e-9)
    again = simulate(load, network, places, 2, policy)
    assert (again.ends == found.ends).all()


# Other tenants.


def workload(**changes):
    base = {
        "machines": [
            {"name": "a", "nic_gbps": 10, "resources": {"cores": 8}},
            {"name": "b", "nic_gbps": 10, "resources": {"cores": 8}},
        ],
        "tasks": [
            {"name": "make", "machine": "a", "seconds": 1, "resources": {"cores": 6}},
            {"name": "use", "machine": "b", "seconds": 1, "resources": {"cores": 2}},
        ],
        "flows": [{"from": "make", "to": "use", "bytes": 1.25e9}],
    }
    return validated(WorkloadDocument, base | changes, "The workload is not valid")


def test_tenants_take_cores_and_links():
    free = build_scenario(workload()).simulate("fair").makespan
    assert free == pytest.approx(1 + 1 + 1)
    machines = workload().model_dump(exclude_none=True)["machines"]
    busy = [{**machines[0], "background": {"cores": 4, "gbps": 5}}, {**machines[1], "background": {"cores": 6}}]
    # 6 cores' work on 4; half of a link; as many cores as it wants.
    assert build_scenario(workload(machines=busy)).simulate("fair").makespan == pytest.approx(6 / 4 + 2 + 1)


def test_tenants_of_an_uplink():
    machines = [{"name": name, "nic_gbps": 10, "rack": name} for name in "ab"]
    tasks = [{"name": name, "machine": machine, "seconds": 1} for name, machine in (("make", "a"), ("use", "b"))]
    found = build_scenario(workload(machines=machines, tasks=tasks, uplink_background_gbps={"a": 7.5}))
    assert found.simulate("fair").makespan == pytest.approx(1 + 4 + 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"transport": {"kind": "udp"}}, "transport.kind"),
        ({"transport": {"paths": 4}}, "give uplinks, or leave out paths"),
        ({"transport": {"kind": "credit", "buffer_kb": 64}}, "credits never overflow a port"),
        ({"transport": {"uplinks": 4}}, "name the rack of every machine"),
        ({"uplink_background_gbps": {"a": 1}}, "which has no uplink"),
        ({"machines": [{"name": "a", "nic_gbps": 10, "background": {"gbps": 10}}]}, "leaves nothing; give less"),
        ({"machines": [{"name": "a", "nic_gbps": 10, "background": {"cores": 1}}]}, "but no cores; say what it has"),
        ({"machines": [], "tasks": [], "flows": [], "trace": {"file": "x"}, "transport": {}}, "are for machines"),
    ],
)
def test_transports_and_tenants_that_cannot_be(changes, said):
    with pytest.raises(PenstockError, match=said):
        build_scenario(workload(**changes))


def test_an_uplink_that_tenants_fill_is_refused():
    with pytest.raises(PenstockError, match="The uplink of rack a carries 10 Gbit/s, and other tenants take 10"):
        racks(["a", "b"], [1.25e9] * 2, [1.25e9] * 2, taken_up={"a": 1.25e9})


def test_tenants_are_estimated_where_links_carried_less():
    cluster = ClusterDocument.model_validate(
        {"machines": [
            {"name": "a", "nic_gbps": 10}, {"name": "b", "nic_gbps": 10}, {"name": "c", "nic_gbps": 10},
            {"name": "d", "nic_gbps": 10, "background": {}},
        ]}
    )  # fmt: skip
    found, notes = with_estimated_tenants(cluster, {"a": 0.75e9, "b": 1.2e9, "d": 0.1e9})
    assert [each.background for each in found.machines] == [Background(gbps=4), None, None, Background()]
    assert ["carried at most 6 of its 10" in notes[0], "no machine c" in notes[1], len(notes)] == [True, True, 2]
    assert machines_of(found, 0.0).network().capacities[:2].tolist() == pytest.approx([0.75e9, 1.25e9])
    assert with_estimated_tenants(cluster, {}) == (cluster, [])
