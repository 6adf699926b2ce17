"""Several paths for one request: declared, profiled, simulated, and chosen by measured cost.

`application_file`, `hardware_file` and `metrics_file` are the three documents, `shipped_files` those that come with
Penstock. `route_table` turns them into arrays. What moves rows in a training run is not here.
"""

from penstock.paths.application_file import ApplicationDocument, read_application
from penstock.paths.hardware_file import HardwareDocument, read_hardware
from penstock.paths.metrics_file import MetricsDocument, PathMetrics, read_metrics, write_metrics
from penstock.paths.route_table import Routes, RouteTable, build_routes
from penstock.paths.shipped_files import find_application, find_hardware, shipped_applications, shipped_hardware

__all__ = [
    "ApplicationDocument",
    "HardwareDocument",
    "MetricsDocument",
    "PathMetrics",
    "RouteTable",
    "Routes",
    "build_routes",
    "find_application",
    "find_hardware",
    "read_application",
    "read_hardware",
    "read_metrics",
    "shipped_applications",
    "shipped_hardware",
    "write_metrics",
]
