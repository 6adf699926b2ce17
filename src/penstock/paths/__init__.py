"""Several paths for one request (LEO): declared, profiled, simulated, and chosen by measured cost.

`documents` are the three files, of an application, its hardware and its metrics, and those that come with Penstock.
`route_table` turns them into arrays, `request_sequence` draws requests, and `simulation` sends them over paths in
time and profiles paths that way. `selectors` has the ways to choose, by name in `selector_table`, and `rules`
their kernels; `optimum` and the search in `request_kernel` say how well one could choose. `chunk_selector` chooses for
chunks of one transfer, as training runs do, and says what they report. What moves rows in a training run is not here.
"""

from typing import TYPE_CHECKING

from penstock.paths.selector_table import SELECTORS, selector_named
from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.paths.documents import find_application, find_hardware
    from penstock.paths.route_table import build_routes


__all__ = ["SELECTORS", "build_routes", "find_application", "find_hardware", "selector_named"]

# Looked up on first use: training reports what came along which path, and waits for no solver.
__getattr__, __dir__ = lazy_names(__name__)
