"""What a trace knows of operations; what fails: expected where a step asks for numbers, never hidden elsewhere."""

import pytest
import torch

from forks import run_forked
from penstock.errors import PenstockError
from penstock.trace.allocations import UntraceableError, asks_for_numbers, rule_for, traceable
from training_graphs import community_graph

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


ATEN = torch.ops.aten
X = torch.linspace(-1, 1, 24).reshape(4, 6)
LIKE_TORCH = [
    (ATEN.arange.default, (5,), {"dtype": torch.int32}),
    (ATEN.arange.default, (2.5,), {}),
    (ATEN.arange.start, (2, 7), {}),
    (ATEN.arange.start_step, (7, 0, -3), {}),
    (ATEN.rsub.Scalar, (X, 1), {}),
    (ATEN.rsub.Tensor, (X, X[:1]), {}),
    (ATEN.sigmoid_backward.default, (X, X), {}),
    (ATEN.tanh_backward.default, (X, X), {}),
    (ATEN.gelu_backward.default, (X, X), {}),
    (ATEN.slice_backward.default, (X[:2], [4, 6], 0, 0, 2, 1), {}),
    (ATEN.select_backward.default, (X[0], [4, 6], 0, 1), {}),
    (ATEN.index_put.default, (X, [torch.tensor([1])], X[:1]), {}),
    (ATEN.slice_scatter.default, (X, X[:2], 0, 0, 2, 1), {}),
    (ATEN.select_scatter.default, (X, X[0], 0, 1), {}),
    (ATEN.binary_cross_entropy_with_logits.default, (X, X.abs(), None, None, 0), {}),
    (ATEN.binary_cross_entropy_with_logits.default, (X, X.abs()), {}),
    (ATEN.binary_cross_entropy_with_logits.default, (X.bfloat16(), X.abs(), None, None, 0), {}),
    (ATEN.linalg_vector_norm.default, (X,), {}),
    (ATEN.linalg_vector_norm.default, (X, 2.0, [1], True), {"dtype": torch.float64}),
    (ATEN.mm.out, (X, X.T), {"out": torch.empty(4, 4)}),
    (ATEN.sort.values, (X, 0), {"values": torch.empty(4, 6), "indices": torch.empty(4, 6, dtype=torch.int64)}),
]
"""Operations whose shapes torch would work out with a solver of equations, and operands of theirs."""


@pytest.mark.parametrize("operation, args, named", LIKE_TORCH, ids=lambda case: getattr(case, "name", lambda: "")())
def test_rules_give_the_shapes_and_types_of_the_operations(operation, args, named):
    def without_numbers(value):
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    real = operation(*args, **named)
    traced = rule_for(operation)(*map(without_numbers, args), **{k: without_numbers(v) for k, v in named.items()})
    pairs = zip(real, traced, strict=True) if isinstance(real, tuple) else [(real, traced)]
    assert rule_for(operation) is not operation
    assert all((a.shape, a.dtype, b.is_meta) == (b.shape, b.dtype, True) for a, b in pairs)


def test_a_forecast_imports_neither_a_compiler_nor_a_solver(tmp_path):
    """Each takes a second; nor does the backward pass of a whole graph."""
    community_graph(60).save(tmp_path / "graph")
    script = """
import sys
import penstock as ps
graph = ps.load("graph")
clipped = {"optimiser": "RMSprop", "clip": 1.0}
for fields in ({"model": "sage"}, {"model": "gat", "heads": 2}, {"task": "link-prediction"}, clipped):
    for device in ("cpu", "cuda"):
        ps.memory(graph, device=device, fanouts=[3, 2], hidden=8, **fields)
ps.train(graph, sampler="whole", hidden=8, epochs=1, run="run")
print("imported:", *{"sympy", "torch._dynamo"} & set(sys.modules))
"""
    done = run_forked(["python", script], cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["imported:"], done.stdout + done.stderr
