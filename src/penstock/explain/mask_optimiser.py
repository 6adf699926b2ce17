"""Masks under GNNExplainer's objective: the smallest part of the input that keeps the prediction.

The mutual information of a prediction with the part of the input that masks leave is largest where the cross-entropy
between the prediction on everything (the target) and that on the masked input is smallest. Two terms for each mask make
it small (the sum or mean of its values) and decided (the entropy of its values, each a probability).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of
from penstock.kernels import njit

# Kernels for masks under optimisation: a mask's terms of the objective, their gradients, and Adam, in one pass.
#
# The same takes thirty operations of torch for each mask and step, whose overhead exceeds a small model's own time.

_FIRST_DECAY, _SECOND_DECAY, _LEAST = 0.9, 0.999, 1e-8
"""Adam's constants, with torch's defaults."""


@njit(nogil=True, cache=True)
def squash(raw: Array, values: Array) -> None:
    """Write the sigmoids of the logits to `values`."""
    for k in range(raw.shape[0]):
        values[k] = 1.0 / (1.0 + math.exp(-raw[k]))


@njit(nogil=True, cache=True)
def terms(raw: Array, values: Array, active: Array, size: float, entropy: float) -> float:
    """The sum of the size and entropy terms of the active values; `size` and `entropy` are the weights of one value."""
    total = 0.0
    for k in range(raw.shape[0]):
        if active[k]:
            # -p log p - (1 - p) log(1 - p) of p = sigmoid(raw), without a logarithm of zero.
            softplus = max(raw[k], 0.0) + math.log1p(math.exp(-abs(raw[k])))
            total += size * values[k] + entropy * (softplus - raw[k] * values[k])
    return total


@njit(nogil=True, cache=True)
def adam_step(
    raw: Array,
    values: Array,
    gradient: Array,
    active: Array,
    moments: Array,
    step: int,
    rate: float,
    size: float,
    entropy: float,
) -> None:
    """Move the logits by one step of Adam, and compute their sigmoids.

    `gradient` is that of the distance with respect to the values; the terms' is added. `moments` has both moments of
    each logit, and `step` counts from 1.
    """
    first_share, second_share = 1.0 - _FIRST_DECAY**step, 1.0 - _SECOND_DECAY**step
    for k in range(raw.shape[0]):
        slope = np.float64(gradient[k])
        if active[k]:
            slope += size - entropy * raw[k]
        slope *= values[k] * (1.0 - values[k])
        moments[0, k] = _FIRST_DECAY * moments[0, k] + (1.0 - _FIRST_DECAY) * slope
        moments[1, k] = _SECOND_DECAY * moments[1, k] + (1.0 - _SECOND_DECAY) * slope * slope
        size_of_step = math.sqrt(moments[1, k] / second_share) + _LEAST
        raw[k] -= rate * moments[0, k] / first_share / size_of_step
        values[k] = 1.0 / (1.0 + math.exp(-raw[k]))


Masks = dict[str, Tensor]
Output = Literal["classes", "labels", "numbers"]
"""What the rows of logits mean: one class of several, several independent labels, or numbers as they are."""

_WINDOW = 10
"""Steps over which the change of the loss is measured, since single steps may change little."""

_SPREAD = 0.01
"""The standard deviation of the logits that masks start from."""


@dataclass(frozen=True)
class Mask:
    """A mask to be found, and its weights in the objective.

    `size` multiplies the sum of its values, or their mean with `size_of="mean"`; `entropy` multiplies the mean of their
    entropies.
    """

    shape: tuple[int, ...]
    size: float = 0.005
    entropy: float = 1.0
    size_of: Literal["sum", "mean"] = "sum"


@dataclass(frozen=True)
class MaskOptions:
    """How masks are optimised, by Adam from values near one half.

    `explain_loss` ends it early: when the loss of the last ten steps has changed by less than this share of the first
    loss. 0 takes all steps.
    """

    steps: int = 100
    lr: float = 0.01
    explain_loss: float = 0.0
    output: Output = "classes"


@dataclass(frozen=True)
class FoundMasks:
    """Values from 0 to 1 by the masks' names, and the loss before each step."""

    values: Masks
    losses: list[float]


def optimise_masks(
    forward: Callable[[Masks], Tensor],
    target: Tensor,
    masks: Mapping[str, Mask],
    options: MaskOptions,
    seed: int,
) -> FoundMasks:
    """The masks with which the output of `forward` stays closest to the target.

    `forward` takes values between 0 and 1 by name, in the masks' shapes, and returns logits [rows, outputs] that can be
    differentiated by them. `target` [rows, outputs] are probabilities (`target_of`, `decided_target_of`), or numbers
    for outputs that are numbers. Whatever else `forward` reads is left alone, its gradients included.

    A value that has no influence on the logits at the first step is 0 in the result and is in no term. The same seed
    gives the same masks; torch's global generators are neither read nor changed.
    """
    _check(masks, options)
    found = {name: _SoughtMask(mask, target, seed, name) for name, mask in masks.items()}
    losses = list[float]()
    for step in range(options.steps):
        values = {name: each.leaf() for name, each in found.items()}
        with torch.enable_grad():
            distance = _distance(forward(values), target, options.output)
        gradients = _gradients(distance, values)
        if step == 0:
            for each, gradient in zip(found.values(), gradients, strict=True):
                each.leave_out(gradient)
        losses.append(_finite(float(distance.detach()) + sum(each.terms() for each in found.values()), step))
        if _settled(losses, options.explain_loss):
            break
        for each, gradient in zip(found.values(), gradients, strict=True):
            each.step(gradient, step + 1, options.lr)
    return FoundMasks({name: each.result() for name, each in found.items()}, losses)


class _SoughtMask:
    """A mask under optimisation: flat arrays that kernels change in place."""

    def __init__(self, mask: Mask, target: Tensor, seed: int, name: str) -> None:
        self._shape, self._mask = mask.shape, mask
        self._raw = _start(mask, seed, name).to(target.dtype).numpy().reshape(-1)
        self._values = np.empty_like(self._raw)
        self._moments = np.zeros((2, len(self._raw)))
        self._active = np.ones(len(self._raw), np.bool_)
        self._size = self._entropy = 0.0
        squash(self._raw, self._values)

    def leaf(self) -> Tensor:
        """The values as a tensor that requires gradients; it shares their memory until the next step."""
        return torch.from_numpy(self._values).reshape(self._shape).requires_grad_()

    def leave_out(self, gradient: Tensor) -> None:
        """Leave values without influence out of all terms: those whose gradient at the first step is zero."""
        self._active = _flat(gradient) != 0
        count = max(1, int(np.count_nonzero(self._active)))
        self._size = self._mask.size / (1 if self._mask.size_of == "sum" else count)
        self._entropy = self._mask.entropy / count

    def terms(self) -> float:
        """The size and entropy terms; 0 where no value has influence."""
        return float(terms(self._raw, self._values, self._active, self._size, self._entropy))

    def step(self, gradient: Tensor, number: int, rate: float) -> None:
        """Do one step of Adam; steps count from 1."""
        given = _flat(gradient), self._active, self._moments, number, rate, self._size, self._entropy
        adam_step(self._raw, self._values, *given)

    def result(self) -> Tensor:
        """The values, with 0 for those without influence."""
        return torch.from_numpy(self._values * self._active).reshape(self._shape)


def target_of(logits: Tensor, output: Output) -> Tensor:
    """The soft target: the probabilities of a model's own logits on the whole input."""
    logits = logits.detach()
    if output == "classes":
        return logits.softmax(-1)
    return logits.sigmoid() if output == "labels" else logits


def decided_target_of(logits: Tensor, output: Output) -> Tensor:
    """The hard target: a model's decision on the whole input, its likeliest class, or yes or no for each label."""
    logits = logits.detach()
    if output == "classes":
        return functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return (logits > 0).to(logits.dtype) if output == "labels" else logits


def _check(masks: Mapping[str, Mask], options: MaskOptions) -> None:
    if not masks:
        raise PenstockError("There is no mask to find: name at least one.", code="option-missing")
    if options.steps < 1 or not options.lr > 0 or not options.explain_loss >= 0:
        raise PenstockError(
            f"Masks cannot be optimised in {options.steps} steps at rate {options.lr} until the loss changes by"
            f" {options.explain_loss}: steps and rate must be above 0, and the change not below it.",
            code="invalid-value",
        )


def _start(mask: Mask, seed: int, name: str) -> Tensor:
    """The initial logits of a mask, close to 0 and each slightly different.

    They are so close to 0 that at first the size term, not the entropy, decides the direction of a value with little
    influence.
    """
    generator = torch.Generator().manual_seed(int(key_of(seed, "mask {}", name)) >> 1)
    return _SPREAD * torch.randn(mask.shape, generator=generator)


def _flat(tensor: Tensor) -> Array:
    return tensor.reshape(-1).numpy()


def _distance(logits: Tensor, target: Tensor, output: Output) -> Tensor:
    """The mean over rows of the cross-entropy of target and prediction, or of the squared difference of numbers."""
    if logits.shape != target.shape:
        raise PenstockError(
            f"The masked model gave logits of shape {tuple(logits.shape)} where the target has {tuple(target.shape)}:"
            " give a target of the same rows and outputs.",
            code="shape-mismatch",
        )
    if output == "classes":
        return functional.cross_entropy(logits, target)
    if output == "labels":
        return functional.binary_cross_entropy_with_logits(logits, target)
    return functional.mse_loss(logits, target)


def _gradients(distance: Tensor, values: Masks) -> tuple[Tensor, ...]:
    """The gradients by the masks; zeros for a mask that the distance does not depend on."""
    if not distance.requires_grad:
        return tuple(torch.zeros_like(each) for each in values.values())
    return torch.autograd.grad(distance, list(values.values()), allow_unused=True, materialize_grads=True)


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise PenstockError(
            f"The loss of the masks became {loss} at step {step + 1}: check that the features are finite numbers, or"
            " lower the learning rate.",
            code="not-finite",
        )
    return loss


def _settled(losses: list[float], share: float) -> bool:
    if share == 0 or len(losses) <= _WINDOW:
        return False
    return abs(losses[-1 - _WINDOW] - losses[-1]) < share * abs(losses[0])
