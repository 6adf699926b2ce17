"""Shapes of models: parameters as published, and refusals."""

import pytest

from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import ExpertExchange, LlmJob
from penstock.simulate.llm.model import PRESETS, Model, Parallelism, preset
from refusals import refused


@pytest.mark.parametrize(
    ("name", "billions", "within"),
    [
        ("gpt3-13b", 13.0, 0.02),
        ("gpt3-175b", 175.0, 0.01),
        ("mixtral-8x7b", 46.7, 0.005),
        ("mixtral-8x22b", 140.6, 0.005),
        ("qwen1.5-moe", 14.3, 0.01),
    ],
)
def test_published_shapes_have_the_published_number_of_parameters(name: str, billions: float, within: float) -> None:
    # GPT-3's embedding is its head too, and it has positions: a hundredth at most.
    assert preset(name).parameters / 1e9 == pytest.approx(billions, rel=within)


def test_the_sources_shapes_differ_where_it_says() -> None:
    assert (PRESETS["qwen-moe-24l"].layers, PRESETS["qwen-moe-24l"].experts) == (24, 64)
    assert (PRESETS["mixtral-8x22b-32l"].layers, PRESETS["mixtral-8x22b"].layers) == (32, 56)


def test_an_unknown_model_is_named_with_the_nearest() -> None:
    with refused("unknown-name mixtral-8x7b"):
        preset("mixtral-8x7")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"heads": 3}, "unsupported-combination 3"),
        ({"experts": 8}, "value-out-of-range top_k"),
        ({"layers": 0}, "value-out-of-range 1"),
        ({"key_value_heads": 3}, "unsupported-combination"),
    ],
)
def test_shapes_that_cannot_be_are_refused(wrong: dict[str, int], says: str) -> None:
    fine = {"layers": 4, "hidden": 64, "heads": 4, "sequence": 16, "feed_forward": 256}
    with refused(says):
        Model(**{**fine, **wrong})


@pytest.mark.parametrize(
    ("parallel", "says"),
    [
        ({"pipeline": 3}, "unsupported-combination 3"),
        ({"tensor": 16}, "unsupported-combination"),
        ({"data": 4, "expert": 3}, "unsupported-combination 3"),
        ({"data": 4, "expert": 4}, "unsupported-combination 4"),
        ({"pipeline": 4, "interleave": 2, "microbatches": 6}, "unsupported-combination"),
        ({"data": 64}, "infeasible"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(parallel: dict[str, int], says: str) -> None:
    model = Model(8, 64, 4, 16, 256)
    with refused(says):
        LlmJob(model, Parallelism(**parallel), Servers(2))


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        (Servers(4, gpus=6, nics=2), "unsupported-combination 3"),
        (Servers(4, routing="ecmp"), "unsupported-combination"),
    ],
)
def test_networks_that_a_job_does_not_fit_are_refused(servers: Servers, says: str) -> None:
    model = Model(8, 64, 4, 16, 256, experts=4, top_k=1)
    with refused(says):
        LlmJob(model, Parallelism(2, data=2, expert=2), servers, exchange=ExpertExchange(schedule="bvn"))
