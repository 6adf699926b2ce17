"""The cost model: predicted seconds of an operator of given sizes on a device, from a machine's fitted rates."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.cost.operators import OPERATORS
from penstock.cost.profile import FittedOperator, Profile
from penstock.errors import PenstockError
from penstock.nn.operator_work import Amounts, seconds_of

LAUNCHES = frozenset({"calls", "hops", "tensors"})
"""Kinds of work that take a GPU's host the time of launching, whatever the sizes."""
BATCH, LAUNCHED_BATCH = "batch", "launched_batch"
"""The names of what was fitted to batches of whole runs; of a GPU to those with captured steps, and launched ones."""


def batch_work(simulated: float, operators: int) -> Amounts:
    """Of a batch in a run: what its operators were simulated to take, the batch itself, and each operator."""
    return {"simulated": simulated, "batches": 1.0, "operators": float(operators)}


class Extrapolation(NamedTuple):
    """A size that is outside of what was measured."""

    operator: str
    device: str
    size: str
    value: float
    smallest: float
    largest: float

    @property
    def factor(self) -> float:
        """How many times smaller or larger than the nearest that was measured."""
        if self.value < self.smallest:
            return self.smallest / max(self.value, 1e-12)
        return self.value / max(self.largest, 1e-12)


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

    def seconds(
        self, operator: str, sizes: Mapping[str, float], device: str = "cpu", *, launched: bool = True
    ) -> float:
        """Predicted seconds of one call, of an operator that is not called for the first time.

        One that is not `launched` by itself but replayed with others takes the same without the time of launching.
        """
        rates = self.fit(operator, device).rates
        work = OPERATORS[operator].work(sizes, self.machine.processor_of(device))
        if not launched:
            work = {name: amount for name, amount in work.items() if name not in LAUNCHES}
        return seconds_of(rates, work)

    def cores(self, operator: str, sizes: Mapping[str, float]) -> float:
        """Cores of the host that one call keeps busy, as a mean over its time."""
        entry, processor = OPERATORS[operator], self.machine.processor_of("cpu")
        if not entry.divided:
            return entry.cores or float(self.machine.cores)
        rates = self.fit(operator).rates
        alone, divided = (
            seconds_of(rates, entry.work(sizes, given)) for given in (processor._replace(threads=1.0), processor)
        )
        return max(1.0, alone / divided) if divided else 1.0

    def batch_seconds(self, simulated: float, operators: int, device: str = "cpu", *, launched: bool = False) -> float:
        """Seconds of a batch in a run, from those of its simulated operators; the same where no run was measured."""
        found = self._fits.get((LAUNCHED_BATCH if launched else BATCH, device))
        return simulated if found is None else seconds_of(found.rates, batch_work(simulated, operators))

    def outside(self, operator: str, sizes: Mapping[str, float], device: str = "cpu") -> list["Extrapolation"]:
        """The sizes of a call that are smaller or larger than all that were measured."""
        found = self._fits.get((operator, device))
        ranges = {} if found is None else found.ranges
        return [
            Extrapolation(operator, device, name, float(sizes[name]), *bounds)
            for name, bounds in ranges.items()
            if name in sizes and not bounds[0] <= sizes[name] <= bounds[1]
        ]

    def step_seconds(self, work: Amounts, device: str = "cpu") -> float:
        """Predicted seconds of a step, from its work (`penstock.cost.step_prediction.step_work`)."""
        return seconds_of(self._fits["step", device].rates, work)
