"""Machines as a plan sees them: what each has, how fast its links are, and who shares a rack."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from penstock.errors import PenstockError
from penstock.simulate.network import Network, racks


@dataclass(frozen=True)
class Machines:
    """All of a cluster, in its order; the first ones hold a part each."""

    names: tuple[str, ...]
    capacities: Mapping[str, tuple[float, ...]]
    """Of every resource, by machine; infinite where nobody has said."""
    rates: tuple[float, ...]
    """Bytes a second, in and out."""
    racks: tuple[str, ...]
    speeds: tuple[float, ...]
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        for name, rate in zip(self.names, self.rates, strict=True):
            if not (np.isfinite(rate) and rate > 0):
                raise PenstockError(
                    f"Machine {name} has a link of {rate:g} bytes/s: give its nic_gbps, above 0.",
                    code="value-out-of-range",
                )

    def network(self) -> Network:
        """Their links."""
        return racks(self.racks, self.rates, self.rates, self.oversubscription, self.names)

    def with_rate(self, number: int, factor: float) -> "Machines":
        """The same with one link faster."""
        rates = [rate * factor if place == number else rate for place, rate in enumerate(self.rates)]
        return replace(self, rates=tuple(rates))

    def with_more(self, resource: str, number: int, amount: float) -> "Machines":
        """The same with more of something on one machine."""
        held = [each + amount if place == number else each for place, each in enumerate(self.capacities[resource])]
        return replace(self, capacities={**self.capacities, resource: tuple(held)})

    def with_copy(self, number: int) -> "Machines":
        """The same with one more machine like another; it holds no part."""
        return Machines(
            (*self.names, f"another {self.names[number]}"),
            {name: (*held, held[number]) for name, held in self.capacities.items()},
            (*self.rates, self.rates[number]),
            (*self.racks, self.racks[number]),
            (*self.speeds, self.speeds[number]),
            self.oversubscription,
        )
