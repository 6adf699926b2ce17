"""Selectors: their rules one decision at a time, the registry, the optimum and the fluid bound."""

import itertools

import numpy as np
import pytest

from penstock.graph.hashing import key_of
from penstock.paths import SELECTORS, build_routes, find_application, find_hardware, selector_named, simulation
from penstock.paths.chunk_selector import ChunkSelector
from penstock.paths.decisions import complete_chunk, decide_chunk, nothing_in_progress
from penstock.paths.documents import ApplicationDocument, HardwareDocument, shipped_applications
from penstock.paths.optimum import fluid_bound, highest_rate, optimal_choices
from penstock.paths.request_sequence import draw_sequence, workload_shares
from penstock.paths.rules import BEHIND, RECORDED_RULE, new_state
from penstock.paths.selectors import Prepared, Selector
from penstock.paths.simulation import profile_paths, simulate_paths, with_metrics
from refusals import refused


def two_paths(fast=2.0, slow=5.0):
    hardware = HardwareDocument(
        name="two",
        nodes={"a": {}, "fast": {}, "slow": {"capacity": 2}},
        links={"net": {"gbps": 100, "latency_us": 10, "jitter_us": [0, 6], "network": True}},
        routes={"a > fast": ["net"], "a > slow": ["net"]},
    )
    application = ApplicationDocument(
        name="two",
        hardware="two",
        workloads={"all": {"ask": 1}},
        requests={
            "ask": {
                "paths": {
                    "slow": [{"go": ["a", "slow"]}, {"compute": "slow", "us": slow}],
                    "fast": [{"go": ["a", "fast"]}, {"compute": "fast", "us": fast}],
                }
            }
        },
    )
    return application, build_routes(application, hardware)


SLOW, FAST = 0, 1


class Deciding:
    """One selector, asked and told by hand."""

    def __init__(self, name, table):
        self.rule, self.table = selector_named(name)[0].rule, table
        self.state = new_state(table.routes, 1000, key_of(0, "test"))
        self.open, self.asked = nothing_in_progress(1), 0

    def choose(self, now=0.0, count=1):
        out = np.empty(count, np.int32)
        slots = np.arange(self.asked, self.asked + count)
        numbers = np.zeros(count, np.int32), np.zeros(count, np.int64), self.asked, slots, now, out
        decide_chunk(self.rule, self.table.routes, self.state, self.open, *numbers)
        self.asked += count
        return out.tolist()

    def tell(self, path, end_to_end=13.0, at_hosts=0.0, apart=0.0, slot=0, now=0.0):
        took = np.array([[end_to_end, at_hosts, apart]])
        numbers = np.zeros(1, np.int32), np.zeros(1, np.int64), np.array([path], np.int32), np.array([slot])
        complete_chunk(self.rule, self.table.routes, self.state, self.open, *numbers, took, now)


def test_leo_counts_slow_completions_and_a_fast_one_resets():
    deciding = Deciding("leo", two_paths()[1])
    assert deciding.choose() == [FAST]
    deciding.tell(FAST, at_hosts=2.5)
    assert deciding.choose() == [FAST], "2 + 1 * 2 < 5"
    deciding.tell(FAST, at_hosts=2.5)
    assert deciding.choose() == [SLOW], "2 + 2 * 2 > 5"
    deciding.tell(FAST, at_hosts=2.0)
    assert deciding.choose() == [FAST]


def test_leo_moves_by_any_jitter_and_leo_smooth_does_not():
    table = two_paths()[1]
    leo, smooth = Deciding("leo", table), Deciding("leo-smooth", table)
    for number in range(4):
        now = 100.0 * number
        for each in (leo, smooth):
            each.choose(now)
            each.tell(FAST, at_hosts=2.02, apart=2.02, slot=number, now=now + 20)
    assert leo.choose(1000.0) == [SLOW] and smooth.choose(1000.0) == [FAST]


def test_leo_smooth_knows_the_queue_of_a_chunk_and_forgets_it_with_time():
    deciding = Deciding("leo-smooth", two_paths()[1])
    chunk = deciding.choose(count=10)
    # A request takes 2 us on the one place of `fast`, and 5 us on each of two places of `slow`.
    assert chunk.count(FAST) == 5
    assert deciding.choose(now=1.0) != [FAST] or deciding.choose(now=30.0) == [FAST]


def test_chunks_of_one_transfer_go_where_each_ends_soonest():
    """The sixth on the fast path ends after 12 us, and would end after 15 on the slow one."""
    deciding = Deciding("leo-smooth", two_paths()[1])
    deciding.state.settings[BEHIND] = 0.0
    assert deciding.choose(count=10).count(FAST) == 6
    chunks = ChunkSelector([0, 2], [0, 1], guess_us=1.0, forget_us=1e6, clock=lambda: 0.0)
    assert sorted(chunks.choose(np.zeros(4, np.int32)).paths.tolist()) == [0, 0, 1, 1]


def test_a_stream_of_requests_is_faster_if_each_thinks_of_those_behind_it(monkeypatch):
    """Each request by itself would rather wait for the fast path, and so all would wait."""
    application = find_application("all-reduce")
    table = build_routes(application, find_hardware(application.hardware))
    _, mix = workload_shares(application, "chunks-256k")
    sequence = draw_sequence(application, "chunks-256k", 0.9 * highest_rate(table, mix), 5000, 0)
    ours = simulate_paths(table, sequence, "leo-smooth", 0).latencies

    def selfish(*given):
        state = new_state(*given)
        state.settings[BEHIND] = 0.0
        return state

    monkeypatch.setattr(simulation, "new_state", selfish)
    assert ours.mean() < 0.9 * simulate_paths(table, sequence, "leo-smooth", 0).latencies.mean()


def test_leo_smooth_leaves_a_path_that_is_slower_than_profiled_and_tries_it_again():
    deciding = Deciding("leo-smooth", two_paths()[1])
    now = 0.0
    for slot in range(8):
        now += 100.0
        deciding.choose(now)
        deciding.tell(FAST, apart=40.0, slot=slot, now=now)
    assert deciding.choose(now) == [SLOW]
    assert deciding.choose(now + 1e5) == [FAST]


def test_greedy_rules_take_the_last_completion_each_by_its_own_signal():
    table = two_paths()[1]
    by_all, by_hosts = Deciding("greedy-end-to-end", table), Deciding("greedy-intra", table)
    for each in (by_all, by_hosts):
        assert each.choose() == [FAST]
        each.tell(FAST, end_to_end=30.0, at_hosts=2.0)
    assert by_all.choose() == [SLOW] and by_hosts.choose() == [FAST]


def test_ipipe_moves_on_and_back():
    deciding = Deciding("ipipe", two_paths()[1])
    assert deciding.choose() == [FAST]
    deciding.tell(FAST, end_to_end=16.0)
    assert deciding.choose() == [SLOW]
    deciding.tell(FAST, end_to_end=90.0)
    assert deciding.choose() == [SLOW], "requests of the former path do not count"
    deciding.tell(SLOW, end_to_end=17.0)
    assert deciding.choose() == [FAST]


def test_fixed_choices():
    application, table = two_paths()
    sequence = draw_sequence(application, None, 1e5, 3000, seed=1)
    assert (simulate_paths(table, sequence, "static").record.path == FAST).all()
    assert (simulate_paths(table, sequence, "node:slow").record.path == SLOW).all()
    assert (simulate_paths(table, sequence, "random").record.path == FAST).mean() == pytest.approx(0.5, abs=0.05)
    divided = simulate_paths(table, sequence, "static", weights=np.array([0.25, 0.75])).record.path
    assert (divided == FAST).mean() == pytest.approx(0.75, abs=1e-3)
    with refused("unknown-name nowhere"):
        simulate_paths(table, sequence, "node:nowhere")


def test_names_are_checked():
    with refused("unknown-name leoo leo"):
        selector_named("leoo")
    with refused("invalid-value node node:NAME"):
        selector_named("node")
    with refused("invalid-value leo:3"):
        selector_named("leo:3")


def test_another_selector_is_one_entry(added):
    application, table = two_paths()
    random = SELECTORS["random"]
    added(SELECTORS, "mine", Selector("mine", random.rule, "as random"))
    sequence = draw_sequence(application, None, 1e5, 300, seed=1)
    mine, other = (simulate_paths(table, sequence, name).record.path for name in ("mine", "random"))
    assert np.array_equal(mine, other)


def test_the_optimum_of_a_window_is_that_of_all_choices():
    application, table = two_paths()
    for seed in range(4):
        sequence = draw_sequence(application, None, 7e5, 7, seed=seed)
        found = optimal_choices(table, sequence, horizon=14)
        costs = {paths: _cost(table, sequence, paths) for paths in itertools.product((SLOW, FAST), repeat=7)}
        assert costs[tuple(found.tolist())] == pytest.approx(min(costs.values()), rel=1e-3)


def test_the_clairvoyant_choices_of_a_short_sequence_are_the_best_of_all():
    application, table = two_paths()
    for seed in range(2):
        sequence = draw_sequence(application, None, 7e5, 6, seed=seed)
        every = [_simulated(table, sequence, paths, seed) for paths in itertools.product((SLOW, FAST), repeat=6)]
        least = min((each.record.end - sequence.arrivals).sum() for each in every)
        found = simulate_paths(table, sequence, "clairvoyant", seed).record
        assert (found.end - sequence.arrivals).sum() == pytest.approx(least, rel=1e-12)


def _simulated(table, sequence, paths, seed):
    """The requests of a sequence along the given paths."""
    fixed = Selector("fixed", RECORDED_RULE, "as given", lambda case: Prepared(choices=np.array(paths, np.int32)))
    with SELECTORS.added("fixed", fixed):
        return simulate_paths(table, sequence, "fixed", seed)


def test_a_clairvoyant_search_of_a_long_sequence_is_never_worse_than_what_it_begins_with():
    application = find_application("block-storage")
    table = build_routes(application, find_hardware(application.hardware))
    _, mix = workload_shares(application, "mixed")
    rate = 0.8 * highest_rate(table, mix)
    sequence = draw_sequence(application, "mixed", rate, 120, seed=1)
    total = {
        name: (simulate_paths(table, sequence, name).record.end - sequence.arrivals).sum()
        for name in ("clairvoyant", "leo-smooth", "rolling-horizon")
    }
    assert total["clairvoyant"] <= min(total["leo-smooth"], total["rolling-horizon"])
    assert total["clairvoyant"] >= len(sequence.arrivals) * (fluid_bound(table, mix, 1.0).mean_us - 3)


def test_the_printed_toll_counts_no_places():
    """Two processors share 5 us of work as one has them: the paper adds compute times and bytes / bandwidth."""
    table = two_paths()[1]
    assert table.routes.toll.tolist() == [5.0, 2.0] and table.routes.toll_per_place.tolist() == [2.5, 2.0]
    with refused("unknown-name optimum rolling-horizon"):
        selector_named("optimum")


def _cost(table, sequence, paths):
    """Times and waits of a choice, by the recursion that the program linearises."""
    service, capacity, work, total = (5.0, 2.0), (2.0, 1.0), [0.0, 0.0], 0.0
    for request, path in enumerate(paths):
        beside = service[path] * (1 - 1 / capacity[path])
        total += table.routes.end_to_end[path] + max(work[path] - beside, 0.0)
        work[path] += service[path] / capacity[path]
        if request + 1 < len(paths):
            gap = sequence.arrivals[request + 1] - sequence.arrivals[request]
            work = [max(each - gap, 0.0) for each in work]
    return total


def test_the_fluid_bound_is_below_every_selector():
    application = find_application("key-value-store")
    table = build_routes(application, find_hardware(application.hardware))
    _, mix = workload_shares(application, "ycsb-b")
    top = highest_rate(table, mix)
    assert top == pytest.approx(5e6 + 8 / 2.4 * 1e6), "four places of 0.8 us, eight of 2.4 us"
    assert fluid_bound(table, mix, top * 1.01) is None
    for load in (0.3, 0.8):
        bound = fluid_bound(table, mix, top * load)
        sequence = draw_sequence(application, "ycsb-b", top * load, 4000, seed=1)
        for selector in ("leo-smooth", "leo", "greedy-intra", "random"):
            # A sample's jitter may be somewhat below its mean.
            assert simulate_paths(table, sequence, selector).latencies.mean() > bound.mean_us - 0.1
    assert bound.shares[:2].sum() == pytest.approx(1.0)


def test_leo_smooth_keeps_latency_where_others_lose_it():
    application = find_application("key-value-store")
    table = build_routes(application, find_hardware(application.hardware))
    _, mix = workload_shares(application, "ycsb-b")
    sequence = draw_sequence(application, "ycsb-b", 0.9 * highest_rate(table, mix), 20_000, seed=1)
    medians = {
        name: np.median(simulate_paths(table, sequence, name).latencies)
        for name in ("leo-smooth", "leo", "greedy-end-to-end", "greedy-intra", "node:responder.cpu")
    }
    assert all(medians["leo-smooth"] * 1.18 < median for name, median in medians.items() if name != "leo-smooth")


def test_a_profile_says_what_the_files_imply():
    for name in shipped_applications():
        application = find_application(name)
        table = build_routes(application, find_hardware(application.hardware))
        metrics = profile_paths(table, name, application.hardware)
        profiled = with_metrics(table, metrics).routes
        assert profiled.base == pytest.approx(table.routes.base)
        assert profiled.distinct == pytest.approx(table.routes.distinct, rel=0.02)
        assert profiled.end_to_end == pytest.approx(table.routes.end_to_end, rel=0.02)
    store = find_application("key-value-store")
    table = build_routes(store, find_hardware(store.hardware))
    get = profile_paths(table, "key-value-store", "off-path").requests["get"]
    found = [get[name].interval_us for name in ("acc", "cpu")]
    assert found == pytest.approx([0.8 / 4, 2.4 / 8], rel=0.1), "the slowest node sets the pace"
    with refused("mismatched-inputs ask"):
        with_metrics(two_paths()[1], metrics)
