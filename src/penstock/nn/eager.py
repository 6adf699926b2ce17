"""torch's optimisers without torch's compiler, which takes seconds to import and compiles nothing here.

torch wraps the methods of its optimisers so that they work inside `torch.compile`. The wrappers import `torch._dynamo`
on their first call, whether anything is compiled or not. Here the wrapped methods are called directly, with gradients
enabled or not as the wrapper of `step` would set it: the same operations on the same numbers.
"""

import inspect
from typing import Any, TypeVar

import torch

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)
_WRAPPED = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")


def eager(kind: type[Kind], differentiable: bool = False) -> type[Kind]:
    """A class of torch.optim whose methods are not wrapped for the compiler; it is a subclass of `kind`.

    `differentiable` is the option of that name that its optimisers are made with.
    """
    gradients: Any = torch.enable_grad() if differentiable else torch.no_grad()
    step = gradients(inspect.unwrap(kind.step))
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _WRAPPED}
    return type(kind.__name__, (kind,), {**methods, "step": step, "__module__": kind.__module__})
