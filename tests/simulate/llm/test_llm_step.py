"""A step's workload: bytes by the source's formulas, and representatives that stand for all data ranks."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.simulate import Workload, simulate
from penstock.simulate.llm import Compute, Exchange, LlmJob, Model, Parallelism, Reduction, Servers, Step, build_step
from penstock.simulate.pace import step_seconds
from penstock.simulate.rates import COFLOW_POLICIES

_DENSE = Model(layers=8, hidden=256, heads=4, sequence=128, feed_forward=1024)
_EXPERTS = Model(layers=4, hidden=128, heads=4, sequence=64, feed_forward=256, matrices=3, experts=8, top_k=2)
_COMPUTE = Compute(attention_ms=0.2, feed_forward_ms=0.5)
_SLOW = Servers(64, nics=1, nic_gbps=10, nvlink_gbps=400)


def _sent(load: Workload, *kinds: str) -> Array:
    chosen = np.isin(load.flow_kinds, kinds)
    return load.flow_bytes[chosen]


def _step_of(step: Step, policy: str, steps: int = 3) -> float:
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
    assert step.load.flow_bytes[out].sum() == pytest.approx(2 * 8 * layer)  # out of a device, and into it
    assert _sent(step.load, "gather").sum() == pytest.approx(2 * 8 * layer)


def test_an_expert_steps_bytes() -> None:
    parallel = Parallelism(8, 2, 8, 4, 3, 1)
    job = LlmJob(_EXPERTS, parallel, _SLOW, _COMPUTE, Exchange(skew=0.0))
    step = build_step(job)
    each = 64 * 2 * 128 * 2  # tokens x top_k x hidden x 2 bytes
    assert step.devices == 2 * 4
    # Four all-to-alls for a layer and microbatch, and of what a device sends (e - 1) / e is for others.
    assert _sent(step.load, "ep-forward", "ep-backward").sum() == pytest.approx(4 * 4 * 3 * 4 * each * 3 / 4)
    shared = 7 / 8 * _EXPERTS.shared_parameters
    experts = 1 / 2 * _EXPERTS.expert_parameters / 4
    reduced = _sent(step.load, "reduce")
    # The shared ring passes the border of those simulated once, the experts' ring at every rank.
    assert reduced.sum() == pytest.approx(4 * 2 * (shared * (4 + 1) + experts * (4 + 4)))


@pytest.mark.parametrize("policy", ["fair", "hermod", "dp-first"])
@pytest.mark.parametrize(
    ("model", "parallel"),
    [(_DENSE, Parallelism(8, 4, 4, 1, 8, 1)), (_DENSE, Parallelism(4, 2, 8, 1, 4, 1)),
     (_EXPERTS, Parallelism(8, 2, 8, 4, 4, 1))],
)  # fmt: skip
def test_representatives_take_as_long_as_all(model: Model, parallel: Parallelism, policy: str) -> None:
    job = LlmJob(model, parallel, _SLOW, _COMPUTE, Exchange(skew=0.0))
    some, everything = build_step(job), build_step(replace(job, simulate="all"))
    assert some.devices < everything.devices
    assert _step_of(some, policy) == pytest.approx(_step_of(everything, policy), rel=1e-6)


def test_ports_take_what_pairs_take_where_tokens_are_even() -> None:
    parallel = Parallelism(8, 2, 8, 4, 4, 1)
    pairs, ports = (
        build_step(LlmJob(_EXPERTS, parallel, _SLOW, _COMPUTE, Exchange(skew=0.0, detail=detail, overhead_us=0.0)))
        for detail in ("pairs", "ports")
    )
    assert ports.load.flows < pairs.load.flows
    assert _step_of(ports, "fair") == pytest.approx(_step_of(pairs, "fair"), rel=0.02)


def test_a_matched_all_to_all_is_no_slower_than_a_fair_one_and_phases_cost() -> None:
    parallel = Parallelism(8, 2, 8, 8, 4, 1)

    def seconds(schedule: str, overhead: float) -> float:
        exchange = Exchange(schedule, skew=1.2, overhead_us=overhead, detail="ports")
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
            step = build_step(LlmJob(model, parallel, servers, _COMPUTE, Exchange(skew=0.8), seed=seed))
            assert _step_of(step, "slack") <= _step_of(step, "hermod") * (1 + 1e-12)


def test_clipping_by_the_norm_of_all_gradients_makes_steps_longer() -> None:
    job = LlmJob(_DENSE, Parallelism(8, 4, 4, 1, 4, 1), replace(_SLOW, nic_gbps=2), _COMPUTE)
    waiting = replace(job, reduction=Reduction(clip="norm"))
    assert _step_of(build_step(waiting), "hermod") > _step_of(build_step(job), "hermod")


def test_every_policy_moves_the_same_bytes_and_ends() -> None:
    step = build_step(LlmJob(_EXPERTS, Parallelism(8, 2, 8, 4, 2, 1), _SLOW, _COMPUTE))
    for policy in COFLOW_POLICIES:
        found = simulate(step.load, step.network, step.placement, 2, policy)
        assert np.isfinite(found.ends).all()
        assert (found.link_use <= 1 + 1e-9).all()


def test_too_many_devices_one_by_one_are_refused() -> None:
    job = LlmJob(_DENSE, Parallelism(1, 1, 1024, 1, 1, 1), Servers(128), simulate="all")
    with pytest.raises(PenstockError, match="representatives"):
        build_step(job)
