"""The cost model that decides on this machine: its own where it was measured, else the one that comes with Penstock."""

import os
from functools import cache
from pathlib import Path

from penstock.cost.machine import this_machine
from penstock.cost.model import CostModel
from penstock.cost.operator_cache import cached_profile
from penstock.cost.profile import read_profile
from penstock.nn.operator_work import SHIPPED
from penstock.nn.order_costs import OrderCosts, order_costs_of, shipped_order_costs

VARIABLE = "PENSTOCK_OPERATORS"
"""Names the profile of operators that decides, instead of this machine's."""


def machine_model() -> CostModel:
    """The model of this machine where it was measured; else the one that comes with Penstock.

    The environment variable PENSTOCK_OPERATORS names another profile of operators, or is `shipped`.
    """
    found = measured_model()
    return shipped_model() if found is None else found


def measured_model() -> CostModel | None:
    """The model of this machine, or of the profile that PENSTOCK_OPERATORS names; None where nothing was measured."""
    asked = os.environ.get(VARIABLE)
    if asked:
        return None if asked == "shipped" else CostModel(read_profile(Path(asked)))
    found = cached_profile(this_machine())
    return None if found is None else CostModel(found)


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
