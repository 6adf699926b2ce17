"""What fails in a trace: expected where a step asks for numbers, and never hidden where it does not."""

import pytest
import torch

from penstock.errors import PenstockError
from penstock.trace.allocations import UntraceableError, asks_for_numbers, traceable

META = torch.device("meta")


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.item(),
        lambda x: x.numpy(),
        lambda x: bool(x.max() > 1),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.tolist(),
        lambda x: x.to("cpu"),
        lambda x: torch.unique(x),
    ],
)
def test_a_step_that_asks_for_numbers_is_expected_to_fail(ask):
    with pytest.raises(UntraceableError), traceable():
        ask(torch.ones(1, device=META))


def test_any_other_error_is_warned_of_with_its_place():
    with (
        pytest.warns(RuntimeWarning, match=r"unexpected.*KeyError.*test_untraceable.py:\d+"),
        pytest.raises(UntraceableError, match="KeyError"),
        traceable(),
    ):
        {}["no such name"]
    assert not asks_for_numbers(RuntimeError("shapes cannot be multiplied"))


def test_refusals_keep_their_sentence_and_a_full_host_is_no_matter_of_the_trace():
    with pytest.raises(UntraceableError, match="does not answer"), traceable():
        raise PenstockError("The store does not answer.", code="peer-lost")
    with pytest.raises(MemoryError), traceable():
        raise MemoryError
