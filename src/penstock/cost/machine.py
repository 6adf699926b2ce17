"""What of a machine affects how long operators take: CPU, cores, caches, device, driver and libraries."""

import hashlib
import json
import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from pydantic import Field

from penstock.formatting import counted
from penstock.graph.blocks import default_threads
from penstock.graph.documents import StrictDocument
from penstock.nn.operator_costs import Processor
from penstock.version import __version__

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


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
