"""Several paths for one request (LEO): declared, profiled, simulated, and chosen by measured cost.

`documents` are the three files, of an application, its hardware and its metrics, and those that come with Penstock.
`route_table` turns them into arrays, `request_sequence` draws requests, and `simulation` sends them over paths in
time and profiles paths that way. `selectors` has the ways to choose (`SELECTORS`), `rules` holds their kernels;
`optimum` and `fluid_limit` say how well one could choose. `chunk_selector` chooses for chunks of one transfer, as
training runs do, and says what they report. What moves rows in a training run is not here.
"""

from typing import TYPE_CHECKING

from penstock.imports import lazy_names
from penstock.registry import Registry

if TYPE_CHECKING:
    from penstock.paths.documents import (
        ApplicationDocument,
        HardwareDocument,
        MetricsDocument,
        PathMetrics,
        find_application,
        find_hardware,
        read_application,
        read_hardware,
        read_metrics,
        shipped_applications,
        shipped_hardware,
        write_metrics,
    )
    from penstock.paths.fluid_limit import FluidBound, fluid_bound, highest_rate
    from penstock.paths.request_sequence import Sequence, draw_sequence, with_noise, workload_shares
    from penstock.paths.route_table import RouteArrays, RouteTable, build_routes
    from penstock.paths.selectors import Selector, selector_named
    from penstock.paths.simulation import Disturbance, SimulatedRequests, profile_paths, simulate_paths, with_metrics


__all__ = [
    "SELECTORS",
    "ApplicationDocument",
    "Disturbance",
    "FluidBound",
    "HardwareDocument",
    "MetricsDocument",
    "PathMetrics",
    "RouteArrays",
    "RouteTable",
    "Sequence",
    "SimulatedRequests",
    "build_routes",
    "draw_sequence",
    "find_application",
    "find_hardware",
    "fluid_bound",
    "highest_rate",
    "profile_paths",
    "read_application",
    "read_hardware",
    "read_metrics",
    "selector_named",
    "shipped_applications",
    "shipped_hardware",
    "simulate_paths",
    "with_metrics",
    "with_noise",
    "workload_shares",
    "write_metrics",
]

SELECTORS: "Registry[Selector]" = Registry(
    "path selector",
    "penstock.path_selectors",
    {
        "leo-smooth": "penstock.paths.selectors:LEO_SMOOTH",
        "leo": "penstock.paths.selectors:LEO",
        "greedy-end-to-end": "penstock.paths.selectors:GREEDY_END_TO_END",
        "greedy-intra": "penstock.paths.selectors:GREEDY_INTRA",
        "ipipe": "penstock.paths.selectors:IPIPE",
        "random": "penstock.paths.selectors:RANDOM",
        "static": "penstock.paths.selectors:STATIC",
        "node": "penstock.paths.selectors:ONE_NODE",
        "optimum": "penstock.paths.selectors:OPTIMUM",
    },
    "penstock.paths.selectors:Selector",
)

# Looked up on first use: training reports what came along which path, and waits for no solver.
__getattr__, __dir__ = lazy_names(__name__)
