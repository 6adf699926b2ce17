"""The cost model: predicted seconds of an operator of given sizes on a device, from a machine's fitted rates."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from penstock.cost.machine import this_machine
from penstock.cost.operator_profile import cached_profile
from penstock.cost.operators import OPERATORS
from penstock.cost.profile import FittedOperator, Profile, read_profile
from penstock.errors import PenstockError
from penstock.nn.operator_work import SHIPPED, seconds_of
from penstock.nn.order_costs import OrderCosts, order_costs_of, shipped_order_costs

VARIABLE = "PENSTOCK_OPERATORS"
"""Names the profile of operators that decides, instead of this machine's."""


class CostModel:
    """Predictions from a machine's profile (`penstock profile --operators`)."""

    def __init__(self, profile: Profile) -> None:
        if profile.machine is None or not profile.fits:
            raise PenstockError(
                "The profile has no fitted operators: make one with `penstock profile --operators`.",
                code="missing-data",
            )
        self.profile, self.machine = profile, profile.machine
        self._fits: dict[tuple[str, str], FittedOperator] = {(each.name, each.device): each for each in profile.fits}

    def knows(self, operator: str, device: str = "cpu") -> bool:
        """Whether the operator was measured on a kind of device."""
        return (operator, device) in self._fits

    def fit(self, operator: str, device: str = "cpu") -> FittedOperator:
        """An operator's rates on a kind of device."""
        if operator not in OPERATORS:
            raise PenstockError(
                f"There is no operator {operator!r} (operators: {', '.join(OPERATORS)}).", code="unknown-name"
            )
        if (operator, device) not in self._fits:
            raise PenstockError(
                f"Operator {operator} was not measured on {device}: run `penstock profile --operators` on a machine"
                f" with {device}.",
                code="missing-data",
            )
        return self._fits[operator, device]

    def seconds(self, operator: str, sizes: Mapping[str, float], device: str = "cpu") -> float:
        """Predicted seconds of one call, of an operator that is not called for the first time."""
        rates = self.fit(operator, device).rates
        work = OPERATORS[operator].work(sizes, self.machine.processor_of(device))
        return seconds_of(rates, work)


def machine_model() -> CostModel:
    """The model of this machine where it was measured; else the one that comes with Penstock.

    The environment variable PENSTOCK_OPERATORS names another profile of operators, or is `shipped`.
    """
    asked = os.environ.get(VARIABLE)
    if asked:
        return shipped_model() if asked == "shipped" else CostModel(read_profile(Path(asked)))
    found = cached_profile(this_machine())
    return shipped_model() if found is None else CostModel(found)


@cache
def shipped_model() -> CostModel:
    """The model that comes with Penstock: `machine` says what it was measured on."""
    return CostModel(read_profile(SHIPPED))


def machine_order_costs() -> dict[str, OrderCosts]:
    """By device, what decides the order of a layer's products here.

    Devices that this machine was not measured with have the costs that come with Penstock.
    """
    found = machine_model().profile.model_dump(mode="json", include={"machine", "fits"})
    return {**shipped_order_costs(), **order_costs_of(found)}
