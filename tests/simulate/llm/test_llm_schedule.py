"""The order of a stage's passes, and what it costs: closed forms of the bubble."""

from collections import Counter

import pytest

from penstock.simulate import simulate
from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import Compute, LlmJob
from penstock.simulate.llm.model import Model, Parallelism, order_of
from penstock.simulate.llm.step import build_step
from penstock.simulate.timeline import bubble_fraction, step_seconds

_MODEL = Model(layers=16, hidden=64, heads=4, sequence=64, feed_forward=256)
_SILENT = Servers(64, nic_gbps=1e9, nvlink_gbps=1e9)
_COMPUTE = Compute(attention_ms=1.0, feed_forward_ms=2.0, backward=2.0)


@pytest.mark.parametrize("interleave", [1, 2, 4])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4), (4, 8), (4, 16)])
def test_every_pass_is_done_once_and_forward_before_backward(stages: int, microbatches: int, interleave: int) -> None:
    for stage in range(stages):
        order = order_of(stage, stages, microbatches, interleave)
        assert set(Counter(order).values()) == {1}
        assert len(order) == 2 * microbatches * interleave
        for place, work in enumerate(order):
            if not work.forward:
                assert work._replace(forward=True) in order[:place]


def test_warm_up_is_as_the_source_says() -> None:
    for stage in range(4):
        plain = order_of(stage, 4, 8)
        assert next(k for k, work in enumerate(plain) if not work.forward) == 4 - stage - 1 + 1
        chunked = order_of(stage, 4, 8, 2)
        assert next(k for k, work in enumerate(chunked) if not work.forward) == 2 * (4 - stage - 1) + 4 + 1


@pytest.mark.parametrize(
    ("stages", "microbatches", "interleave"),
    [(1, 4, 1), (2, 4, 1), (4, 8, 1), (4, 16, 1), (8, 8, 1), (2, 4, 2), (4, 8, 2), (4, 8, 4), (4, 4, 2), (8, 16, 2)],
)
def test_without_communication_the_bubble_has_its_closed_form(stages: int, microbatches: int, interleave: int) -> None:
    parallel = Parallelism(1, stages, 1, 1, microbatches, 1, interleave)
    step = build_step(LlmJob(_MODEL, parallel, _SILENT, _COMPUTE))
    found = simulate(step.load, step.network, step.placement, 3, "fair")
    bubble = bubble_fraction(found, step.placement)
    assert bubble == pytest.approx((stages - 1) / (interleave * microbatches), abs=1e-4)
    ideal = microbatches * _MODEL.layers / stages * (3 + 6) / 1e3
    assert step_seconds(found.case, found.ends) == pytest.approx(ideal * (1 + bubble), rel=1e-9)


def test_a_step_bound_by_arithmetic_takes_operations_over_rate() -> None:
    compute = Compute(tflops=100.0, efficiency=0.4)
    step = build_step(LlmJob(_MODEL, Parallelism(1, 1, 1, 1, 4, 2), _SILENT, compute))
    found = simulate(step.load, step.network, step.placement, 2, "fair")
    tokens = 64 * 2
    flops = _MODEL.layers * (2.0 * tokens * (4 * 64 * 64 + 2 * 64 * 256) + 4.0 * tokens * 64 * 64)
    assert step_seconds(found.case, found.ends) == pytest.approx(4 * 3 * flops / (100e12 * 0.4), rel=1e-9)
