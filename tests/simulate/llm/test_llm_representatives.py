"""Every small job that is legal builds, runs to its end, and takes as long as with all its data ranks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.simulate import Timeline, simulate
from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import Compute, ExpertExchange, LlmJob
from penstock.simulate.llm.model import Model, Parallelism, order_of
from penstock.simulate.llm.step import LlmStep, build_step
from penstock.simulate.timeline import step_seconds
from refusals import refused

_DENSE = Model(layers=4, hidden=64, heads=4, sequence=64, feed_forward=256)
_EXPERTS = Model(layers=4, hidden=64, heads=4, sequence=64, feed_forward=128, matrices=3, experts=12, top_k=2)
_COMPUTE = Compute(attention_ms=0.2, feed_forward_ms=0.5)


@st.composite
def small_jobs(draw: st.DrawFn) -> LlmJob:
    """Jobs on servers of four GPUs, whose degrees need not go into each other where that is legal."""
    tensor, pipeline, data = (draw(st.sampled_from(each)) for each in ((1, 2, 4), (1, 2, 4), (1, 2, 3, 4, 6, 8, 12)))
    expert, microbatches, interleave = (draw(st.sampled_from(each)) for each in ((1, 2, 3, 4, 6), (1, 2, 3, 4), (1, 2)))
    assume(data % expert == 0 and pipeline * data <= 24)
    assume(interleave == 1 or (pipeline == 2 and microbatches % 2 == 0))
    servers = Servers(-(-tensor * pipeline * data // 4), 4, nics=draw(st.sampled_from((1, 2, 4))), nic_gbps=2)
    exchange = ExpertExchange(skew=0.0, detail=draw(st.sampled_from(("pairs", "ports"))), overhead_us=5.0)
    model = _DENSE if expert == 1 and draw(st.booleans()) else _EXPERTS
    return LlmJob(model, Parallelism(tensor, pipeline, data, expert, microbatches, 1, interleave), servers, _COMPUTE,
                  exchange)  # fmt: skip


@given(job=small_jobs(), policy=st.sampled_from(("fair", "hermod", "ep-first")))
def test_representatives_stand_for_all(job: LlmJob, policy: str) -> None:
    some, everything = build_step(job), build_step(replace(job, simulate="all"))
    found, whole = (_run(step, policy) for step in (some, everything))
    assert step_seconds(found.case, found.ends) == pytest.approx(step_seconds(whole.case, whole.ends), rel=1e-9)
    times = everything.devices // some.devices
    for kind in set(some.load.flow_kinds) | set(everything.load.flow_kinds):
        assert times * _bytes(some, kind) == pytest.approx(_bytes(everything, kind))


def _run(step: LlmStep, policy: str) -> Timeline:
    found = simulate(step.load, step.network, step.placement, 2, policy)
    assert np.isfinite(found.ends).all() and (found.link_use <= 1 + 1e-9).all()
    return found


def _bytes(step: LlmStep, kind: str) -> float:
    return float(step.load.flow_bytes[np.array(step.load.flow_kinds) == kind].sum())


@given(
    stages=st.integers(1, 8), rounds=st.integers(1, 6), odd=st.integers(0, 7), interleave=st.integers(1, 5),
)  # fmt: skip
def test_no_order_of_passes_waits_for_itself(stages: int, rounds: int, odd: int, interleave: int) -> None:
    interleave = 1 if stages == 1 else interleave
    microbatches = rounds * stages + (odd if interleave == 1 else 0)
    orders = [order_of(stage, stages, microbatches, interleave) for stage in range(stages)]
    done: set[tuple[bool, int, int]] = set()
    places, moved = [0] * stages, True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                work = order[places[stage]]
                chunk = stage + work.chunk * stages
                last = chunk == (0 if work.forward else stages * interleave - 1)
                before = (work.forward, chunk + (-1 if work.forward else 1), work.microbatch)
                own = (True, chunk, work.microbatch)
                if not ((last or before in done) and (work.forward or own in done)):
                    break
                done.add((work.forward, chunk, work.microbatch))
                places[stage], moved = places[stage] + 1, True
    assert places == [2 * microbatches * interleave] * stages


def test_ranks_that_lie_differently_in_servers_are_all_simulated() -> None:
    # Four GPUs a server and six data ranks: the second server holds two of each stage.
    job = LlmJob(_DENSE, Parallelism(1, 2, 6, 1, 2), Servers(3, 4, nics=1), _COMPUTE)
    assert (job.replicas, replace(job, parallel=Parallelism(1, 2, 8, 1, 2), servers=Servers(4, 4)).replicas) == (6, 4)
    with refused("too-large 4"):
        build_step(replace(job, parallel=Parallelism(1, 2, 401, 1, 2), servers=Servers(201, 4, nics=1)))
    with refused("too-large"):
        experts = replace(_EXPERTS, experts=1024)
        build_step(LlmJob(experts, Parallelism(4, 1, 1024, 1024), Servers(1024, 4)))
