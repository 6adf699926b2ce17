"""What orders of coflows say of a step's flows, and what communication costs it."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.hardware.machines import star
from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import Compute, ExpertExchange, GradientReduction, LlmJob
from penstock.simulate.llm.model import Model, Parallelism
from penstock.simulate.llm.step import LlmStep, build_step
from penstock.simulate.rates.compression import compressed
from penstock.simulate.rates.policies import model_ranks, slack_orders
from penstock.simulate.scenario import Scenario
from penstock.simulate.simulation import Simulator, with_queues
from penstock.simulate.timeline import exposed_seconds, step_seconds
from penstock.simulate.workload import WorkloadBuilder, draw_amounts
from refusals import refused

_EXPERTS = Model(layers=4, hidden=128, heads=4, sequence=64, feed_forward=256, matrices=3, experts=4, top_k=2)
_SERVERS = Servers(64, nics=1, nic_gbps=10, nvlink_gbps=400)
_COMPUTE = Compute(attention_ms=0.2, feed_forward_ms=0.5)


def _job(microbatches: int, interleave: int = 1) -> LlmJob:
    return LlmJob(_EXPERTS, Parallelism(8, 2, 8, 4, microbatches, 1, interleave), _SERVERS, _COMPUTE)


def _scenario(job: LlmJob) -> Scenario:
    step = build_step(job)
    speeds = np.ones(len(step.network.machines))
    return Scenario(step.load, step.network, step.placement, draw_amounts(step.load, 3), speeds, True)


@pytest.mark.parametrize(("microbatches", "interleave"), [(1, 1), (4, 1), (4, 2)])
def test_reductions_go_after_all_else_of_their_step_and_before_the_next(microbatches: int, interleave: int) -> None:
    step = build_step(_job(microbatches, interleave))
    ranks = model_ranks(Simulator(step.load, step.network, 3).case(step.placement))
    kinds = np.array(step.load.flow_kinds)
    reductions, gathers = kinds == "reduce", kinds == "gather"
    rest = ~(reductions | gathers)
    assert (ranks[:, reductions].min(axis=1) > ranks[:, rest].max(axis=1)).all()
    assert (ranks[:-1, reductions].max(axis=1) < ranks[1:, rest].min(axis=1)).all()
    # What is gathered in a step competes with the next step's first microbatch, by layer.
    first = rest & (step.load.microbatches == 0)
    for layer in range(3):
        lower, higher = (gathers & (step.load.layers == each) for each in (layer, layer + 1))
        meets = first & (step.load.layers == layer + 1)
        assert ranks[0, lower].max() < ranks[1, meets].min() <= ranks[1, meets].max() < ranks[0, higher].min()


def test_experts_go_before_stages_where_chunks_are_interleaved() -> None:
    step = build_step(_job(4, 2))
    ranks = model_ranks(Simulator(step.load, step.network, 1).case(step.placement))[0]
    kinds, microbatches = np.array(step.load.flow_kinds), step.load.microbatches
    for microbatch in range(1, 4):
        experts, stages = (
            ranks[(microbatches == microbatch) & np.char.startswith(kinds, each)] for each in ("ep", "pp-interleaved")
        )
        assert experts.max() < stages.min()


def test_delays_of_schedules_and_rings_are_communication() -> None:
    job = replace(
        _job(2),
        exchange=ExpertExchange(schedule="bvn", skew=0.5, overhead_us=500.0),
        servers=replace(_SERVERS, nic_gbps=1e6),
    )
    for changed in (job, replace(_job(2), reduction=GradientReduction(latency_us=1000.0), servers=job.servers)):
        scenario = _scenario(changed)
        found, silent = scenario.simulate("hermod"), scenario.silent()
        # Links are so fast that there is nothing else.
        assert exposed_seconds(found, silent) > 0.1 * step_seconds(found.case, found.ends)
        computed = build_step(
            replace(changed, exchange=ExpertExchange(skew=0.5), reduction=GradientReduction(latency_us=0.0))
        )
        bare = Simulator(computed.load, computed.network, 3, "fair").timeline(computed.placement)
        expected = step_seconds(found.case, found.ends) - step_seconds(bare.case, bare.ends)
        assert exposed_seconds(found, silent) == pytest.approx(expected, rel=1e-3)


def test_an_order_is_looked_for_once_a_timeline() -> None:
    step, asked = build_step(_job(2)), list[int]()
    simulator = Simulator(step.load, step.network, 2, "slack")

    def terms(case):  # type: ignore[no-untyped-def]
        asked.append(1)
        return policy.terms(case)

    policy = simulator.policy
    simulator.policy = policy._replace(terms=terms)
    assert simulator.timeline(step.placement).makespan > 0 and len(asked) == 1


def test_slack_in_queues_is_never_slower_than_hermod_or_fair_in_as_many() -> None:
    step = build_step(replace(_job(4), servers=replace(_SERVERS, nic_gbps=5)))
    for queues in (1, 2, 3, 8):
        slack, *others = (
            with_queues(Simulator(step.load, step.network, 3, policy), step.placement, queues).timeline(step.placement)
            for policy in ("slack", "hermod", "fair")
        )
        for other in others:
            assert step_seconds(slack.case, slack.ends) <= step_seconds(other.case, other.ends) * (1 + 1e-12)
    assert len(slack_orders(slack.case)) >= 4


def test_with_enough_queues_those_that_meet_keep_their_order() -> None:
    step = build_step(_job(2))
    simulator = Simulator(step.load, step.network, 2, "hermod")
    found = simulator.timeline(step.placement)
    ranks, tasks = model_ranks(found.case), step.load.tasks
    starts, ends = found.starts[:, tasks:], found.ends[:, tasks:]
    queues = compressed(found.case, ranks, starts, ends, 1000)
    links = [set(step.network.path(*ends).tolist()) for ends in zip(*_machines(step), strict=True)]
    met = 0
    for one in range(0, step.load.flows, 3):
        for other in range(step.load.flows):
            meets = starts[0, one] < ends[0, other] and starts[0, other] < ends[0, one] and links[one] & links[other]
            if meets and ranks[0, one] < ranks[0, other]:
                met += 1
                assert queues[0, one] < queues[0, other]
    assert met > 20 and queues.max() < len(np.unique(ranks))


def _machines(step: LlmStep) -> list[list[int]]:
    return [step.placement[each].tolist() for each in (step.load.sources, step.load.targets)]


def test_too_many_coflows_for_queues_are_refused() -> None:
    step = build_step(_job(32))
    simulator = Simulator(step.load, step.network, 1000, "hermod")
    with refused("too-large --queues"):
        with_queues(simulator, step.placement, 4)


def test_a_planned_jobs_gradients_go_before_its_features() -> None:
    building = WorkloadBuilder()
    ends = [building.task(name, "task", 1.0) for name in ("here", "there")]
    for kind in ("features", "lists", "gradients", "weights"):
        building.flow(ends[0], ends[1], 1e6, kind, name=kind)
    network = star([1e6, 1e6], [1e6, 1e6])
    found = Simulator(building.build(), network, 2, "hermod").case(np.array([0, 1], np.int32))
    features, lists, gradients, weights = model_ranks(found).T.tolist()
    for n in range(2):
        assert gradients[n] == weights[n] < lists[n] < features[n]
    assert features[0] < gradients[1]
