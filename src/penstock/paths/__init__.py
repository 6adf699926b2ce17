"""Several paths for one request: declared, profiled, simulated, and chosen by measured cost.

`application_file`, `hardware_file` and `metrics_file` are the three documents, `shipped_files` those that come with
Penstock, and `profiling` measures metrics. `route_table` turns them into arrays, `request_sequence` draws requests, and
`simulation` sends them over paths in time (`event_loop`). `selectors` is the registry of ways to choose, `rules` holds
their kernels; `optimum` and `fluid_limit` say how well one could choose. `chunk_selector` chooses for chunks of one
transfer, as training runs do, and `path_use` is what they report. What moves rows in a training run is not here.
"""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.paths.application_file import ApplicationDocument, read_application
    from penstock.paths.fluid_limit import FluidBound, fluid_bound, highest_rate
    from penstock.paths.hardware_file import HardwareDocument, read_hardware
    from penstock.paths.metrics_file import MetricsDocument, PathMetrics, read_metrics, write_metrics
    from penstock.paths.profiling import profile_paths, with_metrics
    from penstock.paths.request_sequence import Sequence, draw_sequence, with_noise, workload_shares
    from penstock.paths.route_table import Routes, RouteTable, build_routes
    from penstock.paths.selectors import SELECTORS, selector_named
    from penstock.paths.shipped_files import find_application, find_hardware, shipped_applications, shipped_hardware
    from penstock.paths.simulation import Disturbance, Outcome, simulate_paths

__all__ = [
    "SELECTORS",
    "ApplicationDocument",
    "Disturbance",
    "FluidBound",
    "HardwareDocument",
    "MetricsDocument",
    "Outcome",
    "PathMetrics",
    "RouteTable",
    "Routes",
    "Sequence",
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

# Looked up on first use: training reports what came along which path, and waits for no solver.
__getattr__ = lazy_names(
    __name__,
    {
        "penstock.paths.application_file": (
            "ApplicationDocument",
            "read_application",
        ),
        "penstock.paths.fluid_limit": (
            "FluidBound",
            "fluid_bound",
            "highest_rate",
        ),
        "penstock.paths.hardware_file": (
            "HardwareDocument",
            "read_hardware",
        ),
        "penstock.paths.metrics_file": (
            "MetricsDocument",
            "PathMetrics",
            "read_metrics",
            "write_metrics",
        ),
        "penstock.paths.profiling": (
            "profile_paths",
            "with_metrics",
        ),
        "penstock.paths.request_sequence": (
            "Sequence",
            "draw_sequence",
            "with_noise",
            "workload_shares",
        ),
        "penstock.paths.route_table": (
            "Routes",
            "RouteTable",
            "build_routes",
        ),
        "penstock.paths.selectors": (
            "SELECTORS",
            "selector_named",
        ),
        "penstock.paths.shipped_files": (
            "find_application",
            "find_hardware",
            "shipped_applications",
            "shipped_hardware",
        ),
        "penstock.paths.simulation": (
            "Disturbance",
            "Outcome",
            "simulate_paths",
        ),
    },
)


def __dir__() -> list[str]:
    return __all__
