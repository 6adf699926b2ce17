"""Made profiles of operators: what tests predict with, whatever the machine."""

from penstock.cost.machine import Machine
from penstock.cost.operators import OPERATORS
from penstock.cost.profile import FittedOperator, Profile
from penstock.nn.operator_work import Processor

HERE = Machine(processor="a made processor", cores=2, processors={"cpu": (1e6, 1e8, 2)}, libraries={"torch": "1"})


def operator_profile(rate: float = 1e-9, machine: Machine = HERE, **of_operators: float) -> Profile:
    """Every operator of the host at one rate for each kind of its work, some of them at another."""
    fits = [
        FittedOperator(
            name=name,
            rates=dict.fromkeys(_kinds(name), of_operators.get(name, rate)),
            fitted=10,
            held_out=6,
            mean_error=0.03,
            p95_error=0.1,
        )
        for name, entry in OPERATORS.items()
        if "cpu" in entry.devices
    ]
    return Profile(mode="operators", operators=[], machine=machine, fits=fits, skipped=["cuda: none"], seconds=12.0)


class _Any(dict[str, float]):
    def __missing__(self, name: str) -> float:
        return 1.0


def _kinds(name: str) -> list[str]:
    return list(OPERATORS[name].work(_Any(), Processor(1.0, 1.0)))
