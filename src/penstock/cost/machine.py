"""What of a machine decides how long operators take: processor, cores, caches, device, driver and libraries."""

import hashlib
import json
import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from pydantic import Field

from penstock.graph.blocks import default_threads
from penstock.graph.documents import StrictDocument
from penstock.nn.operator_work import Processor
from penstock.version import __version__

_LIBRARIES = ("torch", "numpy", "numba", "triton")
_OWN, _LAST = 1 << 20, 32 << 20
"""Bytes of caches where the system does not tell."""


class Machine(StrictDocument):
    """A machine as the cost model knows it: another one is measured anew."""

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
        """What of a kind of device the work of operators depends on."""
        return Processor(*self.processors[device])

    @property
    def digest(self) -> str:
        """A short name of exactly this machine."""
        # A GPU's memory does not change how long operators take, and its name says as much.
        text = json.dumps(self.model_dump(mode="json", exclude={"gpu_memory"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def this_machine() -> Machine:
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
    return Machine(
        processor=processor_name(),
        cores=cores,
        processors=processors,
        gpu=gpu,
        gpu_memory=memory,
        driver=driver,
        libraries=libraries,
    )


def processor_name() -> str:
    """The processor as the system calls it."""
    found = dict[str, str]()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    if "model name" in found:
        return found["model name"]
    plain = platform.processor() or platform.machine()
    # ARM's kernels tell numbers instead of a name.
    part = [f"{name.removeprefix('CPU ')} {found[name]}" for name in ("CPU implementer", "CPU part") if name in found]
    return f"{plain} ({', '.join(part)})" if part else plain


def _cpu_caches() -> tuple[float, float]:
    """Of the first core: its largest cache that it shares with no other, and the last one."""
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
