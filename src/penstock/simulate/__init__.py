"""Tasks and flows over a network in time: predicts what a placed job will take.

`workload` is what has to be done, and puts one together (`gnn` builds GNN training), `amounts` the seconds and bytes of
each iteration, `rates/` how flows share links, `timeline` what happened when, `levels` the critical path and lower
bounds. `simulation` joins them; `document` is all of it in a file and `scenario` what a file describes; `engine` and
`state` are kernels. Links are described in `penstock.hardware.machines`; `penstock.plan` decides where tasks are
placed.
"""

from typing import TYPE_CHECKING

from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.hardware.machines import Network, racks, star
    from penstock.simulate.gnn import GnnJob, gnn_workload
    from penstock.simulate.levels import CriticalStep, Pace, critical_path, gap_of, lower_bound
    from penstock.simulate.rates import POLICIES
    from penstock.simulate.simulation import simulate
    from penstock.simulate.timeline import Timeline
    from penstock.simulate.workload import PeakToMean, draw_amounts

__all__ = [
    "POLICIES",
    "CriticalStep",
    "GnnJob",
    "Network",
    "Pace",
    "PeakToMean",
    "Timeline",
    "critical_path",
    "draw_amounts",
    "gap_of",
    "gnn_workload",
    "lower_bound",
    "racks",
    "simulate",
    "star",
]

# Imported on first use: help lists the rate policies without loading kernels.
__getattr__, __dir__ = lazy_names(__name__)
