"""Requests over paths in time: against queueing theory, against a plain simulation, and again with the same seed."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_requests import plain_ends

from penstock.paths import build_routes, find_application, find_hardware
from penstock.paths.documents import ApplicationDocument, HardwareDocument
from penstock.paths.request_sequence import draw_sequence, workload_shares
from penstock.paths.simulation import Disturbance, simulate_paths
from refusals import refused


def one_node(capacity, service=1.0):
    hardware = HardwareDocument(
        name="one", nodes={"a": {"capacity": capacity}}, links={"l": {"gbps": 1}}, routes={"a > a": []}
    )
    application = ApplicationDocument(
        name="one",
        hardware="one",
        workloads={"all": {"ask": 1}},
        requests={"ask": {"paths": {"a": [{"compute": "a", "us": service}]}}},
    )
    return application, build_routes(application, hardware)


def kvs():
    application = find_application("key-value-store")
    return application, build_routes(application, find_hardware(application.hardware))


def test_constant_service_waits_as_in_m_d_1():
    application, table = one_node(1)
    load = 0.7
    sequence = draw_sequence(application, None, load * 1e6, 300_000, seed=3)
    waits = simulate_paths(table, sequence, "static").latencies - 1.0
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.03)


@pytest.mark.parametrize("places", [1, 3])
def test_exponential_service_waits_as_in_m_m_c(places):
    application, table = one_node(places)
    load = 0.7
    sequence = draw_sequence(application, None, load * places * 1e6, 300_000, seed=4)
    services = np.random.default_rng(1).exponential(size=(300_000, 1))
    outcome = simulate_paths(table, sequence._replace(noise=services - 1.0), "static")
    waits = (outcome.record.end - sequence.arrivals - services[:, 0])[30_000:]
    offered = load * places
    full = offered**places / math.factorial(places) / (1 - load)
    chance = full / (sum(offered**k / math.factorial(k) for k in range(places)) + full)
    assert waits.mean() == pytest.approx(chance / (places * (1 - load)), rel=0.05)
    assert (waits > 1e-9).mean() == pytest.approx(chance, rel=0.03)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_every_request_ends_as_in_a_plain_simulation(data):
    nodes = {f"n{each}": {"capacity": data.draw(st.integers(1, 3))} for each in range(3)}
    # Round numbers would make events happen at the same moment, whose order is not defined.
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    links = {}
    for name in ("x", "y"):
        gbps, latency, mops, constant = numbers.uniform(0.1, 5, 4).tolist()
        links[name] = {"gbps": gbps, "latency_us": latency, "mops": mops, "jitter_us": (constant, constant)}
    hardware = HardwareDocument(name="h", nodes=nodes, links=links, routes={"n0 > n1": ["x"], "n1 > n2": ["y", "x"]})
    step = st.one_of(
        st.builds(lambda node: {"compute": f"n{node}", "us": float(numbers.uniform(0.01, 3))}, st.integers(0, 2)),
        st.builds(lambda size: {"go": ["n0", "n1", "n2"], "bytes": size}, st.integers(0, 500)),
    )
    # Who goes twice in a row comes to a link at the moment at which it has left it: its place there is not defined.
    steps = st.lists(step, min_size=1, max_size=4).filter(
        lambda steps: not any("go" in each and "go" in following for each, following in pairwise(steps))
    )
    paths = {f"p{each}": data.draw(steps) for each in range(2)}
    application = ApplicationDocument(
        name="a", hardware="h", workloads={"w": {"r": 1}}, requests={"r": {"paths": paths}}
    )
    table = build_routes(application, hardware)
    sequence = draw_sequence(application, None, data.draw(st.floats(1e5, 2e6)), 120, seed=data.draw(st.integers(0, 99)))
    outcome = simulate_paths(table, sequence, "random", seed=5)
    assert outcome.record.end == pytest.approx(plain_ends(table.routes, sequence.arrivals, outcome.record.path))


def test_a_lone_request_takes_its_base_time_and_jitter_between_its_ends():
    application, table = kvs()
    sequence = draw_sequence(application, "ycsb-c", 1e3, 2000, seed=1)._replace(arrivals=np.arange(2000) * 1e3)
    record = simulate_paths(table, sequence, "static").record
    assert record.at_hosts == pytest.approx(table.routes.base[0])
    assert record.apart == pytest.approx(table.routes.distinct[0])
    network = record.end - sequence.arrivals - record.at_hosts
    fixed = table.routes.end_to_end[0] - table.routes.base[0] - 2 * 6.0
    assert network.min() >= fixed + 6.0 - 1e-6 and network.max() <= fixed + 18.0 + 1e-6
    assert network.mean() == pytest.approx(fixed + 12.0, rel=0.01)


@pytest.mark.parametrize("selector", ["leo", "leo-smooth", "random"])
def test_the_same_seed_gives_the_same_requests(selector):
    application, table = kvs()
    one, other = (
        simulate_paths(table, draw_sequence(application, "ycsb-b", 6e6, 5000, seed=2), selector, seed=2)
        for _ in range(2)
    )
    assert np.array_equal(one.record.end, other.record.end) and np.array_equal(one.record.path, other.record.path)
    third = simulate_paths(table, draw_sequence(application, "ycsb-b", 6e6, 5000, seed=3), selector, seed=3)
    assert not np.array_equal(one.record.end, third.record.end)


def test_sequences_have_the_mix_the_rate_and_the_skew_of_their_workload():
    application, _ = kvs()
    sequence = draw_sequence(application, "ycsb-b", 4e6, 50_000, seed=1)
    assert (sequence.types == 1).mean() == pytest.approx(0.05, abs=0.005)
    assert 50_000 / sequence.arrivals[-1] == pytest.approx(4.0, rel=0.02)
    counts = np.bincount(sequence.groups, minlength=2)
    assert counts[0] / counts[1] == pytest.approx(2**0.99, rel=0.1)
    files = find_application("file-system")
    chunks = draw_sequence(files, None, 1e4, 10, seed=1)
    assert chunks.groups.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2] and chunks.arrivals[3] == chunks.arrivals[0]


def test_requests_that_depend_on_one_in_progress_take_its_path():
    application, table = kvs()
    sequence = draw_sequence(application.model_copy(update={"addresses": 20}), "ycsb-b", 5e6, 4000, seed=1)
    record = simulate_paths(table, sequence, "random").record
    put = table.types.index("put")
    followed = 0
    for request in range(4000):
        earlier = np.arange(request)
        open_ones = earlier[
            (record.end[earlier] > sequence.arrivals[request]) & (sequence.groups[earlier] == sequence.groups[request])
        ]
        if sequence.types[request] != put and (sequence.types[open_ones] == put).any():
            assert table.paths[record.path[request]] == "cpu" and record.forced[request]
            followed += 1
        elif sequence.types[request] != put:
            assert not record.forced[request], "two GETs do not depend on each other"
    assert followed > 100


def test_chunks_of_a_message_take_one_path():
    application = find_application("file-system")
    table = build_routes(application, find_hardware(application.hardware))
    sequence = draw_sequence(application, None, 5e3, 400, seed=1)
    paths = simulate_paths(table, sequence, "random").record.path.reshape(-1, 4)
    assert (paths == paths[:, :1]).all() and len(np.unique(paths)) == 2


def test_a_disturbed_node_is_slower_for_a_while():
    application, table = one_node(1)
    sequence = draw_sequence(application, None, 1e3, 2000, seed=1)
    slow = Disturbance("a", 5e5, 1e6, 10.0)
    took = simulate_paths(table, sequence, "static", disturbances=(slow,)).record.end - sequence.arrivals
    inside = (sequence.arrivals > 5e5) & (sequence.arrivals < 1e6)
    assert took[inside].min() >= 10.0 - 1e-6 and np.median(took[~inside]) == pytest.approx(1.0)
    with refused("unknown-name nowhere"):
        simulate_paths(table, sequence, "static", disturbances=(Disturbance("nowhere", 0, 1, 2),))


def test_wrong_loads_and_workloads_are_sentences():
    application, _ = kvs()
    with refused("value-out-of-range -3"):
        draw_sequence(application, None, -3, 10, seed=0)
    with refused("unknown-name ycsb-d ycsb-c"):
        workload_shares(application, "ycsb-d")
