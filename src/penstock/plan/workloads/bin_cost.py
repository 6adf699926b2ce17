"""What a bin of a layer takes, forward and backward: lines through what a profile measured at several sizes."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from penstock.cost.profile import OperatorCost, Profile
from penstock.errors import PenstockError
from penstock.graph.arrays import Array

FORWARD, BACKWARD = "forward", "backward"


class CostLine(NamedTuple):
    """Seconds of a bin by its rows, its edges, and the different rows that it reads."""

    fixed: float
    row: float
    edge: float
    input: float = 0.0

    def seconds(self, rows: float, edges: float, inputs: float = 0.0) -> float:
        """Seconds of a bin; one without rows is not computed."""
        return self.fixed + self.row * rows + self.edge * edges + self.input * inputs if rows else 0.0


class LayerCost(NamedTuple):
    """One layer of a model."""

    forward: CostLine
    backward: CostLine
    width_in: int
    width_out: int


def operator_name(direction: str, layer: int) -> str:
    """The operator of a profile that is one layer's pass over a bin in one direction."""
    return f"{direction} {layer}"


def layer_costs(profile: Profile, device: str) -> list[LayerCost]:
    """The layers of a profile's model on a kind of device, or on processors where they were measured there alone."""
    found: list[LayerCost] = []
    names = {each.name for each in profile.operators}
    while operator_name(FORWARD, len(found)) in names:
        passes = [_measured(profile, operator_name(way, len(found)), device) for way in (FORWARD, BACKWARD)]
        sizes = passes[0][0].sizes
        forward, backward = map(fitted_line, passes)
        found.append(LayerCost(forward, backward, int(sizes["width_in"]), int(sizes["width_out"])))
    if not found:
        # Says what is missing, and how to measure it.
        profile.operator(operator_name(FORWARD, 0), device)
    return found


def fitted_line(measured: list[OperatorCost]) -> CostLine:
    """The line nearest to some measurements by relative difference, none of whose terms is below 0."""
    # Profiles of earlier releases say nothing of inputs.
    at = np.array([[1.0, each.sizes["rows"], each.sizes["edges"], each.sizes.get("inputs", 0.0)] for each in measured])
    return CostLine(*fitted_terms(at, np.array([each.seconds.mean for each in measured])))


def fitted_terms(at: Array, seconds: Array) -> list[float]:
    """For every column of `at` a factor of at least 0, such that products add up to about the seconds of each row."""
    # Columns of about the same size: those of rows, edges and bytes are millions.
    weights, scale = 1 / np.maximum(seconds, 1e-9), np.maximum(at.max(axis=0), 1e-300)
    terms, _ = nnls(at / scale * weights[:, None], seconds * weights)
    found: list[float] = (terms / scale).tolist()
    return found


def _measured(profile: Profile, name: str, device: str) -> list[OperatorCost]:
    profile.operator(name, device)
    found = profile.measurements(name, device) or profile.measurements(name, "cpu")
    for each in found:
        missing = {"rows", "edges", "width_in", "width_out"} - set(each.sizes)
        if missing:
            raise PenstockError(
                f"The profile's operator {name} has no size {min(missing)}: measure again with `penstock profile JOB`.",
                code="missing-data",
            )
    return found
