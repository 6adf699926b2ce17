"""A step's workload: bytes by the source's formulas, and representatives that stand for all data ranks."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.graph.arrays import Array
from penstock.simulate import simulate
from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import Compute, ExpertExchange, GradientReduction, LlmJob
from penstock.simulate.llm.model import Model, Parallelism
from penstock.simulate.llm.step import LlmStep, build_step
from penstock.simulate.rates import COFLOW_POLICIES
from penstock.simulate.timeline import step_seconds
from penstock.simulate.workload import Workload
from refusals import refused

_DENSE = Model(layers=8, hidden=256, heads=4, sequence=128, feed_forward=1024)
_EXPERTS = Model(layers=4, hidden=128, heads=4, sequence=64, feed_forward=256, matrices=3, experts=8, top_k=2)
_COMPUTE = Compute(attention_ms=0.2, feed_forward_ms=0.5)
_SLOW = Servers(64, nics=1, nic_gbps=10, nvlink_gbps=400)


def _sent(load: Workload, *kinds: str) -> Array:
    chosen = np.isin(load.flow_kinds, kinds)
    return load.flow_bytes[chosen]


def _step_of(step: LlmStep, policy: str, steps: int = 3) -> float:
    found = simulate(step.load, step.network, step.placement, steps, policy)
    return step_seconds(found.case, found.ends)


def test_a_dense_steps_bytes() -> None:
    parallel = Parallelism(8, 4, 4, 1, 6, 2)
    step = build_step(LlmJob(_DENSE, parallel, _SLOW, _COMPUTE))
    passed = 2 * 128 * 2 * 256
    assert set(_sent(step.load, "pp-forward", "pp-backward")) == {passed}
    # Three borders, both ways, every microbatch; one device stands for all data ranks.
    assert len(_sent(step.load, "pp-forward", "pp-backward")) == 3 * 2 * 6
    layer = 3 / 4 * _DENSE.shared_parameters * 2
    out = np.flatnonzero(np.isin(step.load.flow_kinds, ["reduce"]))
    assert step.load.flow_bytes[out].sum() == pytest.approx(8 * layer)
    assert _sent(step.load, "gather").sum() == pytest.approx(8 * layer)


def test_an_expert_steps_bytes() -> None:
    parallel = Parallelism(8, 2, 8, 4, 3, 1)
    job = LlmJob(_EXPERTS, parallel, _SLOW, _COMPUTE, ExpertExchange(skew=0.0))
    step = build_step(job)
    each = 64 * 2 * 128 * 2  # tokens x top_k x hidden x 2 bytes
    assert step.devices == 2 * 4
    # Four all-to-alls for a layer and microbatch, and of what a device sends (e - 1) / e is for others.
    assert _sent(step.load, "ep-forward", "ep-backward").sum() == pytest.approx(4 * 4 * 3 * 4 * each * 3 / 4)
    shared = 7 / 8 * _EXPERTS.shared_parameters
    experts = 1 / 2 * _EXPERTS.expert_parameters / 4
    reduced = _sent(step.load, "reduce")
    assert reduced.sum() == pytest.approx(4 * 2 * (shared * 4 + experts * 4))


@pytest.mark.parametrize("policy", ["fair", "hermod", "dp-first"])
@pytest.mark.parametrize(
    ("model", "parallel"),
    [(_DENSE, Parallelism(8, 4, 4, 1, 8, 1)), (_DENSE, Parallelism(4, 2, 8, 1, 4, 1)),
     (_EXPERTS, Parallelism(8, 2, 8, 4, 4, 1))],
)  # fmt: skip
def test_representatives_take_as_long_as_all(model: Model, parallel: Parallelism, policy: str) -> None:
    job = LlmJob(model, parallel, _SLOW, _COMPUTE, ExpertExchange(skew=0.0))
    some, everything = build_step(job), build_step(replace(job, simulate="all"))
    assert some.devices < everything.devices
    assert _step_of(some, policy) == pytest.approx(_step_of(everything, policy), rel=1e-6)


def test_ports_take_what_pairs_take_where_tokens_are_even() -> None:
    parallel = Parallelism(8, 2, 8, 4, 4, 1)
    pairs, ports = (
        build_step(
            LlmJob(_EXPERTS, parallel, _SLOW, _COMPUTE, ExpertExchange(skew=0.0, detail=detail, overhead_us=0.0))
        )
        for detail in ("pairs", "ports")
    )
    assert ports.load.flows < pairs.load.flows
    assert _step_of(ports, "fair") == pytest.approx(_step_of(pairs, "fair"), rel=0.02)


def test_a_matched_all_to_all_is_no_slower_than_a_fair_one_and_phases_cost() -> None:
    parallel = Parallelism(8, 2, 8, 8, 4, 1)

    def seconds(schedule: str, overhead: float) -> float:
        exchange = ExpertExchange(schedule=schedule, skew=1.2, overhead_us=overhead, detail="ports")
        return _step_of(build_step(LlmJob(_EXPERTS, parallel, _SLOW, _COMPUTE, exchange)), "hermod")

    assert seconds("bvn", 0.0) <= seconds("matched", 0.0) * (1 + 1e-9)
    assert seconds("bvn", 0.0) <= seconds("fair", 0.0) * (1 + 1e-9)
    assert seconds("bvn", 100.0) > seconds("bvn", 0.0)


@pytest.mark.parametrize("interleave", [1, 2])
def test_slack_is_never_slower_than_hermod(interleave: int) -> None:
    for seed, rate in enumerate((5, 20, 80)):
        for model in (_DENSE, _EXPERTS):
            experts = 4 if model.experts else 1
            parallel = Parallelism(8, 2, 8, experts, 4, 1, interleave)
            servers = replace(_SLOW, nic_gbps=rate)
            step = build_step(LlmJob(model, parallel, servers, _COMPUTE, ExpertExchange(skew=0.8), seed=seed))
            assert _step_of(step, "slack") <= _step_of(step, "hermod") * (1 + 1e-12)


def test_clipping_by_the_norm_of_all_gradients_makes_steps_longer() -> None:
    job = LlmJob(_DENSE, Parallelism(8, 4, 4, 1, 4, 1), replace(_SLOW, nic_gbps=2), _COMPUTE)
    waiting = replace(job, reduction=GradientReduction(clip="norm"))
    assert _step_of(build_step(waiting), "hermod") > _step_of(build_step(job), "hermod")


def test_every_policy_moves_the_same_bytes_and_ends() -> None:
    step = build_step(LlmJob(_EXPERTS, Parallelism(8, 2, 8, 4, 2, 1), _SLOW, _COMPUTE))
    for policy in COFLOW_POLICIES:
        found = simulate(step.load, step.network, step.placement, 2, policy)
        assert np.isfinite(found.ends).all()
        assert (found.link_use <= 1 + 1e-9).all()


def test_too_many_devices_one_by_one_are_refused() -> None:
    job = LlmJob(_DENSE, Parallelism(1, 1, 1024, 1, 1, 1), Servers(128), simulate="all")
    with refused("too-large representatives"):
        build_step(job)


def test_what_would_not_fit_into_memory_or_time_is_refused_at_once() -> None:
    experts = replace(_EXPERTS, layers=1024, experts=256)
    job = LlmJob(experts, Parallelism(8, 8, 16, 16, 4096), Servers(128))
    with refused("too-large all_to_all"):
        build_step(job)
    with refused("too-large 256 4"):
        build_step(LlmJob(replace(experts, layers=4), Parallelism(8, 1, 256, 256), Servers(256)))


def test_an_update_takes_its_time_also_with_one_data_rank() -> None:
    job = LlmJob(_DENSE, Parallelism(8, 1, 1, 1, 2), _SLOW, _COMPUTE)
    slow = replace(job, compute=_COMPUTE.model_copy(update={"update_ms": 50.0}))
    # The first layer's, whose gradients come last, is in the way of the next step.
    assert _step_of(build_step(slow), "fair") - _step_of(build_step(job), "fair") == pytest.approx(0.05)


def test_tensor_ranks_exchange_as_much_backward_as_forward() -> None:
    parallel, servers = Parallelism(8, 1, 1, 1, 2), replace(_SLOW, nvlink_gbps=1.0)
    exchanged = 2 * 7 / 8 * 2 * 128 * 256 / (1e9 / 8)

    def seconds(backward: float) -> float:
        compute = Compute(attention_ms=0.2, feed_forward_ms=0.5, backward=backward)
        return _step_of(build_step(LlmJob(_DENSE, parallel, servers, compute)), "fair")

    assert seconds(2.0) == pytest.approx(2 * 8 * (3 * 0.7e-3 + 2 * 2 * exchanged))
    # Activations that are computed again are exchanged again.
    assert seconds(3.0) == pytest.approx(2 * 8 * (4 * 0.7e-3 + 3 * 2 * exchanged))


def test_an_all_to_all_within_a_leaf_never_meets_its_uplinks() -> None:
    exchange = ExpertExchange(skew=0.0, detail="ports", overhead_us=0.0)
    free = LlmJob(_EXPERTS, Parallelism(8, 1, 4, 4, 2), replace(_SLOW, servers_per_leaf=4), _COMPUTE, exchange)
    narrow = replace(free, servers=replace(free.servers, oversubscription=8.0))
    cut = replace(narrow, servers=replace(narrow.servers, servers_per_leaf=2))
    assert _step_of(build_step(narrow), "fair") == pytest.approx(_step_of(build_step(free), "fair"), rel=1e-9)
    assert _step_of(build_step(cut), "fair") > 1.1 * _step_of(build_step(free), "fair")


def test_uplinks_are_the_same_to_representatives_that_fill_leaves() -> None:
    servers = replace(_SLOW, servers_per_leaf=4, leaves_per_pod=64, oversubscription=4.0)
    for model, expert in ((_DENSE, 1), (_EXPERTS, 4)):
        for detail in ("pairs", "ports"):
            exchange = ExpertExchange(skew=0.0, detail=detail)
            everything = LlmJob(model, Parallelism(8, 2, 8, expert, 2), replace(servers, count=16), _COMPUTE, exchange,
                                simulate="all")  # fmt: skip
            some = build_step(replace(everything, simulate="representatives"))
            assert some.devices == 2 * expert
            assert _step_of(some, "hermod") == pytest.approx(_step_of(build_step(everything), "hermod"), rel=1e-6)
