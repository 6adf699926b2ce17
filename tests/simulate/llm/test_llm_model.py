"""Shapes of models: parameters as published, and refusals."""

import pytest

from penstock.errors import PenstockError
from penstock.simulate.llm import PRESETS, ExpertExchange, LlmJob, Model, Parallelism, Servers, preset


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
    with pytest.raises(PenstockError, match="mixtral-8x7b"):
        preset("mixtral-8x7")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"heads": 3}, "no 3 equal heads"),
        ({"experts": 8}, "give a top_k"),
        ({"layers": 0}, "give at least 1"),
        ({"key_value_heads": 3}, "let these divide heads"),
    ],
)
def test_shapes_that_cannot_be_are_refused(wrong: dict[str, int], says: str) -> None:
    fine = {"layers": 4, "hidden": 64, "heads": 4, "sequence": 16, "feed_forward": 256}
    with pytest.raises(PenstockError, match=says):
        Model(**{**fine, **wrong})


@pytest.mark.parametrize(
    ("parallel", "says"),
    [
        ({"pipeline": 3}, "no 3 equal chunks"),
        ({"tensor": 16}, "does not fit servers"),
        ({"data": 4, "expert": 3}, "no groups of 3"),
        ({"data": 4, "expert": 4}, "cannot be spread over 4"),
        ({"pipeline": 4, "interleave": 2, "microbatches": 6}, "divide microbatches"),
        ({"data": 64}, "give more servers"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(parallel: dict[str, int], says: str) -> None:
    model = Model(8, 64, 4, 16, 256)
    with pytest.raises(PenstockError, match=says):
        LlmJob(model, Parallelism(**parallel), Servers(2))


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        (Servers(4, gpus=6, nics=2), "cuts through NICs of 3 GPUs"),
        (Servers(4, routing="ecmp"), "schedule fair and detail pairs"),
    ],
)
def test_networks_that_a_job_does_not_fit_are_refused(servers: Servers, says: str) -> None:
    model = Model(8, 64, 4, 16, 256, experts=4, top_k=1)
    with pytest.raises(PenstockError, match=says):
        LlmJob(model, Parallelism(2, data=2, expert=2), servers, exchange=ExpertExchange("bvn"))
