"""The fluid bound, which no selector can beat: a linear program over rates instead of requests."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.paths.optimum import path_demands
from penstock.paths.route_table import RouteTable


@dataclass(frozen=True)
class FluidBound:
    """The division of a load among paths with the least mean time, if nothing ever waits."""

    shares: Array
    """float64 [paths]: of its type's requests, the share that takes the path."""
    mean_us: float
    """The mean latency: a lower bound for any selector at this load."""


def highest_rate(table: RouteTable, mix: Array) -> float:
    """Requests per second above which some queue grows without bound, however paths are chosen; `mix` are the shares of
    types.
    """
    demand, _ = path_demands(table)
    paths = len(table.paths)
    # Columns: the rate of every path, in requests per microsecond, and that of all requests together.
    balance = np.zeros((len(table.types), paths + 1))
    for kind in range(len(table.types)):
        balance[kind, list(table.paths_of(kind))] = 1.0
        balance[kind, paths] = -mix[kind]
    use = np.column_stack([(demand / table.routes.capacity).T, np.zeros(demand.shape[1])])
    costs = np.zeros(paths + 1)
    costs[paths] = -1.0
    found = linprog(costs, A_ub=use, b_ub=np.ones(len(use)), A_eq=balance, b_eq=np.zeros(len(balance)))
    if found.x is None:
        raise PenstockError(f"HiGHS found no highest rate ({found.message}).", code="external-failure")
    return float(found.x[paths]) * 1e6


def fluid_bound(table: RouteTable, mix: Array, rate: float) -> FluidBound | None:
    """The bound at `rate` requests per second, or None where that is more than can be served."""
    demand, _ = path_demands(table)
    paths = len(table.paths)
    balance = np.zeros((len(table.types), paths))
    for kind in range(len(table.types)):
        balance[kind, list(table.paths_of(kind))] = 1.0
    kind_of = np.array([table.type_of(path) for path in range(paths)])
    use = (demand / table.routes.capacity).T * mix[kind_of] * (rate / 1e6)
    found = linprog(
        table.routes.end_to_end * mix[kind_of],
        A_ub=use,
        b_ub=np.ones(len(use)),
        A_eq=balance,
        b_eq=np.ones(len(balance)),
    )
    return None if found.x is None else FluidBound(found.x, float(found.fun))
