"""The profile: measurements of a job or of a machine, as a document that can be edited.

It has the times of operators by device and size, the bytes of transfers, and the memory of processes. The profile of a
machine (`mode: operators`) also has the rates that were fitted to its operators, and their errors. The workload builder
of an execution mode (`plan/workloads`) turns a profile into tasks and flows. Every profile says on which machine it was
measured.
"""

import functools
import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument, read_product
from penstock.graph.files import write_whole
from penstock.nn.operator_costs import Processor
from penstock.processes import default_threads
from penstock.version import __version__

# What of a machine affects how long operators take: CPU, cores, caches, device, driver and libraries.

_LIBRARIES = ("torch", "numpy", "numba", "triton")
_OWN, _LAST = 1 << 20, 32 << 20
"""Assumed bytes of caches where the system does not report them."""


_ARM_PARTS = {
    "0x41": (
        "ARM",
        {
            "0xd03": "Cortex-A53", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57", "0xd08": "Cortex-A72",
            "0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76", "0xd0c": "Neoverse-N1",
            "0xd0d": "Cortex-A77", "0xd40": "Neoverse-V1", "0xd41": "Cortex-A78", "0xd44": "Cortex-X1",
            "0xd46": "Cortex-A510", "0xd47": "Cortex-A710", "0xd48": "Cortex-X2", "0xd49": "Neoverse-N2",
            "0xd4a": "Neoverse-E1", "0xd4d": "Cortex-A715", "0xd4e": "Cortex-X3", "0xd4f": "Neoverse-V2",
            "0xd80": "Cortex-A520", "0xd81": "Cortex-A720", "0xd82": "Cortex-X4", "0xd83": "Neoverse-V3AE",
            "0xd84": "Neoverse-V3", "0xd85": "Cortex-X925", "0xd8e": "Neoverse-N3",
        },
    ),
    "0x43": ("Cavium", {"0x0a1": "ThunderX", "0x0af": "ThunderX2"}),
    "0x46": ("Fujitsu", {"0x001": "A64FX"}),
    "0x48": ("HiSilicon", {"0xd01": "TaiShan-v110", "0xd02": "TaiShan-v120"}),
    "0x4e": ("NVIDIA", {"0x004": "Carmel", "0x010": "Olympus"}),
    "0x61": ("Apple", {}),
    "0xc0": ("Ampere", {"0xac3": "One", "0xac4": "One-A"}),
}  # fmt: skip
"""Makers of ARM processors and their parts by the numbers in /proc/cpuinfo, under the names of lscpu."""


class MeasuredMachine(StrictDocument):
    """A machine as the cost model identifies it: a different one is measured anew."""

    processor: str
    cores: int = Field(ge=1)
    processors: dict[str, tuple[float, float, float]] = Field(
        description="by device, bytes of a core's own cache and of the last one before memory, and threads"
    )
    gpu: str | None = Field(default=None, description="name of the GPU")
    gpu_memory: int | None = Field(default=None, description="bytes of the GPU's memory")
    driver: str | None = Field(default=None, description="version of the GPU's driver")
    libraries: dict[str, str] = Field(default={}, description="versions of what computes")

    def processor_of(self, device: str) -> Processor:
        """The properties of a kind of device that the work of operators depends on."""
        return Processor(*self.processors[device])

    @property
    def words(self) -> str:
        """Its processor, cores and GPU."""
        return f"{self.processor}, {counted(self.cores, 'cores')}; GPU: {self.gpu or 'none'}"

    @property
    def digest(self) -> str:
        """A short identifier of exactly this machine."""
        # A GPU's memory does not affect how long operators take, and its name implies it.
        text = json.dumps(self.model_dump(mode="json", exclude={"gpu_memory"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def this_machine() -> MeasuredMachine:
    """The machine that this process runs on."""
    cores, gpu, memory, driver = default_threads(), None, None, None
    processors = {"cpu": (*_cpu_caches(), float(cores))}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        gpu, memory, driver = properties.name, int(properties.total_memory), _driver()
        # Threads of a GPU share one cache of a size worth counting.
        size = float(getattr(properties, "L2_cache_size", _LAST))
        processors["cuda"] = size, size, 1.0
    libraries = {"penstock": __version__, **{name: found for name in _LIBRARIES if (found := _version(name))}}
    return MeasuredMachine(
        processor=processor_name(),
        cores=cores,
        processors=processors,
        gpu=gpu,
        gpu_memory=memory,
        driver=driver,
        libraries=libraries,
    )


def processor_name(described: Path = Path("/proc/cpuinfo")) -> str:
    """The common name of the CPU, from what the system reports of its cores."""
    found = dict[str, str]()
    with suppress(OSError):
        for line in described.read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    if "model name" in found:
        return found["model name"]
    plain = platform.processor() or platform.machine()
    implementer, part = found.get("CPU implementer"), found.get("CPU part")
    if implementer is None or part is None:
        return plain
    # ARM's kernels report numbers instead of a name.
    maker, parts = _ARM_PARTS.get(implementer, (f"implementer {implementer}", {}))
    return f"{maker} {parts[part]}" if part in parts else f"{plain} ({maker}, part {part})"


def _cpu_caches() -> tuple[float, float]:
    """The largest cache that the first core shares with no other, and the last-level cache."""
    own, last = 0, 0
    with suppress(OSError, ValueError):
        for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            size = _bytes((folder / "size").read_text().strip())
            shared = (folder / "shared_cpu_list").read_text().strip()
            last = max(last, size)
            if shared == "0":
                own = max(own, size)
    return float(own or _OWN), float(last or _LAST)


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _driver() -> str | None:
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].split("  ")[1].strip()
    return os.environ.get("NVIDIA_DRIVER_VERSION")


@functools.cache
def _version(name: str) -> str | None:
    """The version of an installed library, which is read from a file of it once: every run asks twice."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# Measurements of a job or of a machine.

FORMAT, VERSION = "penstock-profile", 3
_RANKS = 20
"""The number of equally likely values that represent a distribution."""
DECIDING = (
    *("graph", "task"),
    *("model", "module", "loss", "hidden", "layers", "heads", "norm"),
    *("sampler", "replace", "weight", "edge_weight", "edge_features", "time", "fanouts", "walk_length", "clusters"),
    *("explain_every", "explain_rows", "remote_bias", "feature_share"),
    *("steps_per_epoch", "batch_size", "negatives", "scorer"),
    *("features", "embedding", "compute_type"),
)
"""Job fields that affect what an iteration costs."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostSpread(StrictDocument):
    """An amount that differs from iteration to iteration."""

    mean: Amount
    shape: list[Amount] = Field(
        default=[1.0], min_length=1, description="values at equally likely ranks, as multiples of the mean"
    )

    @classmethod
    def of(cls, values: Sequence[float] | Array) -> "CostSpread":
        """The mean and spread of measured values."""
        found = np.asarray(values, np.float64)
        mean = float(found.mean()) if len(found) else 0.0
        if mean == 0.0:
            return cls(mean=0.0)
        ranks = (np.arange(_RANKS) + 0.5) / _RANKS
        shape = np.quantile(found / mean, ranks, method="hazen")
        # Cutting off the ends shifts the mean, which is restored.
        return cls(mean=mean, shape=[round(float(each), 6) for each in shape / shape.mean()])


class OperatorCost(StrictDocument):
    """The cost of one operator for one worker's batch, on one kind of device."""

    name: str
    device: str = Field(default="cpu", description="kind of device that it was measured on: cpu, cuda")
    sizes: dict[str, Amount] = Field(default={}, description="what it was measured at, such as batch_size")
    iterations: int = Field(default=1, ge=1, description="measured")
    seconds: CostSpread = Field(description="seconds of the device for each iteration, where it was measured")
    cores: Amount = Field(default=1.0, description="cores that it keeps busy at most")


class TransferCost(StrictDocument):
    """Bytes that one kind of transfer moves in one iteration."""

    name: str
    source: str = Field(description="what they come from; `part` and `worker` are as many as the profile's")
    target: str
    bytes: list[list[Amount]] = Field(min_length=1, description="from every source (rows) to every target (columns)")
    shape: list[Amount] = Field(default=[1.0], min_length=1, description="how they vary, as a spread's shape")
    rate: Amount = Field(default=0.0, description="bytes/s that was reached where it was measured; 0: unknown")

    @property
    def total(self) -> float:
        """Bytes from all sources to all targets."""
        return sum(map(sum, self.bytes))


class MemoryUse(StrictDocument):
    """The most memory that a process of one kind held on one kind of device."""

    process: str
    device: str = "cpu"
    gb: Amount


class FittedOperator(StrictDocument):
    """Rates fitted to an operator's measurements, and how far predictions are from those that were held out."""

    name: str
    device: str = "cpu"
    rates: dict[str, Amount] = Field(description="seconds for one unit of each kind of work (docs/execution.md)")
    first_use: Amount = Field(default=0.0, description="seconds that the first call takes beside its work")
    ranges: dict[str, tuple[Amount, Amount]] = Field(
        default={}, description="the smallest and the largest of each size that was measured"
    )
    fitted: int = Field(ge=1, description="measurements that the rates were fitted to")
    held_out: int = Field(ge=0, description="measurements that they were compared with")
    mean_error: Amount = Field(description="of held-out measurements, as a share of what was measured")
    p95_error: Amount = Field(description="that 95 % of held-out measurements stay below")


class MeasuredSetup(StrictDocument):
    """The size of a cluster that a profile was measured at."""

    parts: int = Field(ge=1)
    workers: int = Field(ge=1)


class Profile(StrictDocument):
    """What was measured of one job on so many parts and workers, or of a machine's operators, by device.

    Amounts are those of one iteration.
    """

    format: Literal["penstock-profile"] = "penstock-profile"
    version: Literal[3] = 3
    mode: str = Field(default="mini-batch", description="how the job was executed; it names a workload builder")
    job: dict[str, Any] = Field(default={}, description="the fields that decide what an iteration costs")
    iterations: int = Field(default=1, ge=1, description="measured")
    batches: int = Field(default=1, ge=1, description="iterations an epoch")
    parts: int = Field(default=1, ge=1)
    workers: int = Field(default=1, ge=1)
    operators: list[OperatorCost] = Field(description="one may be there for several devices and several sizes")
    transfers: list[TransferCost] = Field(default=[])
    memory: list[MemoryUse] = Field(default=[])
    cluster: dict[str, Any] = Field(default={}, description="how rows travelled and gradients were summed")
    machine: MeasuredMachine | None = Field(default=None, description="the machine that operators were fitted on")
    fits: list[FittedOperator] = Field(default=[], description="rates of a machine's operators")
    links: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default={},
        description="machine -> bytes/s that its link carried at most in a run on the cluster; empty: measured on"
        " one host, which tells nothing of links",
    )
    skipped: list[str] = Field(default=[], description="what was not measured, and why")
    seconds: Amount = Field(default=0.0, description="that measuring and fitting took")
    others: Amount = Field(default=0.0, description="share of all cores that other programs used meanwhile")
    warnings: list[str] = Field(default=[], description="why what was measured may be wrong")
    scaled_from: MeasuredSetup | None = Field(
        default=None, description="where the amounts were measured, if these are predicted from there"
    )

    @model_validator(mode="after")
    def _check(self) -> "Profile":
        counts = {"part": self.parts, "worker": self.workers}
        for each in self.transfers:
            rows, columns = counts.get(each.source, 1), counts.get(each.target, 1)
            if len(each.bytes) != rows or any(len(row) != columns for row in each.bytes):
                raise ValueError(
                    f"transfer {each.name} must have {rows} rows ({each.source}s) of {columns} numbers ({each.target}s)"
                )
        _check_once("operator", [f"{each.name} on {each.device} at {each.sizes}" for each in self.operators])
        _check_once("fit of", [f"{each.name} on {each.device}" for each in self.fits])
        _check_once("transfer", [each.name for each in self.transfers])
        _check_once("memory of", [f"{each.process} on {each.device}" for each in self.memory])
        return self

    def measurements(self, name: str, device: str) -> list[OperatorCost]:
        """All measurements of an operator on a kind of device, that of the largest batch first."""
        found = [each for each in self.operators if (each.name, each.device) == (name, device)]
        return sorted(found, key=lambda each: -each.sizes.get("batch_size", 0.0))

    def operator(self, name: str, device: str = "cpu") -> OperatorCost:
        """An operator on a kind of device, or on the CPU if it was measured only there."""
        found = self.measurements(name, device) or self.measurements(name, "cpu")
        if found:
            return found[0]
        others = sorted({each.device for each in self.operators if each.name == name})
        have = f"only on {', '.join(others)}" if others else "not at all"
        raise PenstockError(
            f"The profile has operator {name} measured {have}, and it is needed on {device}: measure with"
            f" `penstock profile JOB --device {device}`.",
            code="missing-data",
        )

    def transfer(self, name: str) -> TransferCost | None:
        """A kind of transfer; None: there is none."""
        return next((each for each in self.transfers if each.name == name), None)

    def memory_gb(self, process: str, device: str = "cpu") -> float:
        """The most memory that a process of a kind holds on a kind of device; 0 if it was not measured."""
        return next((each.gb for each in self.memory if (each.process, each.device) == (process, device)), 0.0)

    @property
    def rate(self) -> float:
        """Bytes/s that the fastest transfer reached; 0: unknown."""
        return max((each.rate for each in self.transfers), default=0.0)

    @property
    def smaller_batch(self) -> int | None:
        """Seeds of the smaller batches that operators were measured with too, for fixed costs; None without."""
        sizes = sorted({each.sizes["batch_size"] for each in self.operators if "batch_size" in each.sizes})
        return int(sizes[-2]) if len(sizes) > 1 else None

    def check_job(self, job: Mapping[str, Any], where: str) -> None:
        """Refuse a profile of another job."""
        for name in (each for each in DECIDING if each in job):
            value = self.job.get(name)
            if job[name] != value:
                raise PenstockError(
                    f"{where} is the profile of another job: it has {name} {value!r} where this one has"
                    f" {job[name]!r}; measure this one with `penstock profile`.",
                    code="mismatched-inputs",
                )


def _check_once(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what} {name} is there twice: keep one of them")


def deciding(job: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job that a profile belongs to."""
    return {name: job[name] for name in DECIDING if name in job}


def read_profile(path: Path) -> Profile:
    """Read and validate a profile."""
    return read_product(path, Profile, FORMAT, VERSION, "measure", "profile JOB")


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile for people to read and change."""
    rounded = _rounded(profile.model_dump())
    text = Profile.model_validate(rounded).model_dump_json(indent=1)
    write_whole(path, text + "\n")


def _rounded(value: Any) -> Any:
    """Values rounded to six digits, more than were measured."""
    if isinstance(value, float):
        return 0.0 if value == 0 else round(value, 5 - math.floor(math.log10(abs(value))))
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
