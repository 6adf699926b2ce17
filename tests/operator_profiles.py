"""Made profiles of operators: what tests predict with, whatever the machine."""

from collections.abc import Mapping

from penstock.cost.operators import OPERATORS
from penstock.cost.profile import FittedOperator, MeasuredMachine, Profile
from penstock.nn.operator_costs import Processor

HERE = MeasuredMachine(
    processor="a made processor", cores=2, processors={"cpu": (1e6, 1e8, 2)}, libraries={"torch": "1"}
)
WITH_GPU = HERE.model_copy(update={"gpu": "a made GPU", "processors": {"cpu": (1e6, 1e8, 2), "cuda": (5e7, 5e7, 1)}})


def operator_profile(rate: float = 1e-9, machine: MeasuredMachine = HERE, **of_operators: float) -> Profile:
    """Every operator of the host at one rate for each kind of its work, some of them at another."""
    fits = [
        _fit(name, "cpu", of_operators.get(name, rate)) for name, entry in OPERATORS.items() if "cpu" in entry.devices
    ]
    return Profile(mode="operators", operators=[], machine=machine, fits=fits, skipped=["cuda: none"], seconds=12.0)


def gpu_profile(
    rate: float = 1e-9, gpu: float = 1e-11, of_gpu: Mapping[str, float] | None = None, **of_operators: float
) -> Profile:
    """The same of a machine with a GPU: its operators at another rate, some (`of_gpu`) apart."""
    host = operator_profile(rate, WITH_GPU, **of_operators)
    of_gpu = of_gpu or {}
    names = [name for name, entry in OPERATORS.items() if "cuda" in entry.devices]
    fits = [_fit(name, "cuda", of_gpu.get(name, gpu)) for name in names]
    return host.model_copy(update={"fits": [*host.fits, *fits], "skipped": []})


def _fit(name: str, device: str, rate: float) -> FittedOperator:
    rates = dict.fromkeys(_kinds(name), rate)
    return FittedOperator(name=name, device=device, rates=rates, fitted=10, held_out=6, mean_error=0.03, p95_error=0.1)


class _Any(dict[str, float]):
    def __missing__(self, name: str) -> float:
        return 1.0


def _kinds(name: str) -> list[str]:
    return list(OPERATORS[name].work(_Any(), Processor(1.0, 1.0)))
