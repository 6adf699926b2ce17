"""How busy a device is while something runs, and the most memory that is used of it, as the system counts them."""

import subprocess
import threading
from pathlib import Path
from statistics import mean
from typing import Self

_PAUSE_S = 0.5


class DeviceUse:
    """Looks at a device twice a second: a GPU through nvidia-smi, the host through /proc."""

    def __init__(self, device: str) -> None:
        self._on_gpu, self._ended = device == "cuda", threading.Event()
        self._busy: list[float] = []
        self._memory: list[float] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def utilisation(self) -> float | None:
        """The mean share of the time in which the device was busy, or of the host's cores; None where nobody tells."""
        return round(mean(self._busy), 3) if self._busy else None

    def most_memory_gb(self) -> float | None:
        """The most memory that was used at once, by all processes."""
        return round(max(self._memory), 3) if self._memory else None

    def _look(self) -> None:
        before = None if self._on_gpu else _processor()
        while not self._ended.wait(_PAUSE_S):
            if self._on_gpu:
                self._look_at_gpu()
                continue
            now = _processor()
            if now is not None and before is not None and now[1] > before[1]:
                self._busy.append((now[0] - before[0]) / (now[1] - before[1]))
            before = now
            self._memory.append(_host_memory_gb())

    def _look_at_gpu(self) -> None:
        asked = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
        try:
            line = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
            busy, used = (float(each) for each in line.split(","))
        except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
            return
        self._busy.append(busy / 100)
        self._memory.append(used * (1 << 20) / 1e9)


def _processor() -> tuple[float, float] | None:
    """Ticks in which cores were busy, and all ticks."""
    try:
        ticks = [float(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    except (OSError, ValueError):
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _host_memory_gb() -> float:
    known = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, size = line.partition(":")
        known[name] = float(size.split()[0])
    return (known["MemTotal"] - known["MemAvailable"]) * 1024 / 1e9
