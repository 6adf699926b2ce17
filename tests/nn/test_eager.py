"""torch's optimisers without the wrappers for its compiler: the same numbers, the same state."""

import subprocess
import sys

import pytest
import torch

from penstock.nn.eager import eager

OPTIMISERS = {
    "Adam": {},
    "AdamW": {"weight_decay": 0.1},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.1},
    "Adagrad": {},
    "Adadelta": {},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "ASGD": {},
    "Rprop": {},
}


def trained(kind, options, steps=4, state=None):
    """The weights and the optimiser's state after some steps of the same small regression."""
    torch.manual_seed(0)
    model, rows = torch.nn.Linear(5, 3), torch.rand(7, 5)
    optimiser = kind(model.parameters(), lr=0.01, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, 2, 0.5)
    if state is not None:
        optimiser.load_state_dict(state)
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        model(rows).square().sum().backward()
        optimiser.step()
        schedule.step()
    return [parameter.detach().clone() for parameter in model.parameters()], optimiser.state_dict()


def equal(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_same_bits_as_torch(name):
    kind, options = getattr(torch.optim, name), OPTIMISERS[name]
    weights, state = trained(kind, options)
    own_weights, own_state = trained(eager(kind), options)
    assert equal(weights, own_weights) and equal(state, own_state)
    assert equal(trained(kind, options, state=state), trained(eager(kind), options, state=own_state))


def test_an_optimiser_is_still_of_its_kind():
    optimiser = eager(torch.optim.Adam)([torch.nn.Parameter(torch.zeros(2))], lr=0.5)
    assert isinstance(optimiser, torch.optim.Adam)
    assert repr(optimiser).startswith("Adam (") and optimiser.defaults["lr"] == 0.5


def test_gradients_are_not_recorded_by_a_step():
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = eager(torch.optim.SGD)([weight], lr=0.5)
    weight.square().sum().backward()
    optimiser.step()
    assert weight.grad_fn is None and torch.is_grad_enabled()


def test_the_compiler_is_not_imported():
    """In a process of its own, as other tests may have imported it."""
    program = """
import sys, torch
from penstock.nn.eager import eager
for name in ("Adam", "AdamW", "SGD"):
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = eager(getattr(torch.optim, name))([weight], lr=0.5)
    optimiser.zero_grad()
    weight.square().sum().backward()
    optimiser.step()
    optimiser.load_state_dict(optimiser.state_dict())
    print(name, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "Adam False\nAdamW False\nSGD False\n"
