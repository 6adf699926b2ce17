"""Who carries out operators: threads of the host, streams of a device, and the bus in both directions.

A lane does one operator after the other. It uses resources, which lanes share: cores of the host in parts, and the bus
and the device in turns. For the simulator a resource is a link, and an operator is a flow over it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.hardware.network import Network

CORES, UP, DOWN, GPU = "CPU cores", "bus up", "bus down", "GPU"
UNITS = 1e9
"""Of a second of a resource: the simulator counts in whole bytes, so to speak, and operators take microseconds."""


class Lane(NamedTuple):
    """What carries out an operator."""

    name: str
    resources: tuple[str, ...]
    cores: float = 1.0
    """Cores that the operator keeps busy, where it is the host's."""

    @property
    def title(self) -> str:
        """Its name, with the cores."""
        return f"{self.name} ({self.cores:g})"


def lane_network(lanes: Sequence[Lane], cores: float) -> Network:
    """A machine for each lane, behind one that all operators start from; lanes' resources are links to them."""
    capacities = {CORES: cores, UP: 1.0, DOWN: 1.0, GPU: 1.0}
    names, shared = ["start", *(lane.title for lane in lanes)], list(capacities)
    links = [*capacities.values(), *(lane.cores if CORES in lane.resources else 1.0 for lane in lanes), 1.0]
    paths = [[len(links) - 1]]
    paths += [[len(shared) + place, *map(shared.index, lane.resources)] for place, lane in enumerate(lanes)]
    # Every path to a lane is the same, wherever it begins; none leads from a machine to itself.
    ends = [[] if source == target else paths[target] for source in range(len(names)) for target in range(len(names))]
    starts = np.cumsum([0, *map(len, ends)])
    return Network(
        tuple(names),
        (*shared, *names[1:], "none"),
        np.array(links) * UNITS,
        starts.astype(np.int32),
        np.array([link for path in ends for link in path], np.int32),
    )
