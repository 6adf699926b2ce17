"""Profiles of whole-graph jobs that nobody measured."""

from typing import Any

from penstock.cost.profile import Profile

ROW, EDGE = 1e-6, 1e-8


def whole_profile(layers: int = 2, fixed: float = 0.0, gradients: float = 0.0, **changes: Any) -> Profile:
    """Seconds by rows and edges alone; backward takes twice as long as forward."""
    sizes = [(1000, 5000), (1000, 50_000), (4000, 20_000), (8000, 400_000)]
    fields = {
        "mode": "whole",
        "job": {"graph": "g"},
        "iterations": 1,
        "batches": 1,
        "parts": 1,
        "workers": 1,
        "operators": [
            {
                "name": f"{way} {layer}",
                "sizes": {"rows": rows, "edges": edges, "width_in": 16, "width_out": 16},
                "seconds": {"mean": times * (fixed + ROW * rows + EDGE * edges)},
            }
            for layer in range(layers)
            for way, times in (("forward", 1), ("backward", 2))
            for rows, edges in sizes
        ],
        "transfers": [{"name": "gradients", "source": "model", "target": "model", "bytes": [[gradients]]}],
        "memory": [{"process": kind, "gb": 1} for kind in ("store", "worker", "server")],
    }
    return Profile.model_validate({**fields, **changes})
