"""The cost model: predicted seconds of an operator of given sizes on a device, from a machine's fitted rates."""

from collections.abc import Mapping

from penstock.cost.operators import OPERATORS
from penstock.cost.profile import FittedOperator, Profile
from penstock.errors import PenstockError
from penstock.nn.operator_work import Amounts, seconds_of


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

        One that is not `launched` by itself but replayed with others takes the same without the time of a call.
        """
        rates = self.fit(operator, device).rates
        work = OPERATORS[operator].work(sizes, self.machine.processor_of(device))
        if not launched:
            work = {name: amount for name, amount in work.items() if name != "calls"}
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

    def step_seconds(self, work: Amounts, device: str = "cpu") -> float:
        """Predicted seconds of a step, from its work (`penstock.cost.step_prediction.step_work`)."""
        return seconds_of(self._fits["step", device].rates, work)
