"""The k-step optimum: which paths the next k requests should take, as a mixed-integer program, repeatedly.

A window of requests is decided together and the first half of it is kept. For every resource that the alternatives load
differently there is the work ahead of each request, V, in microseconds of all its places together: V[t+1] >= V[t] +
demand of t's path / capacity - time until t+1,  V >= 0 and what request t waits there, if its path goes over it: W[t]
>= V[t] - (1 - 1/capacity) * service - M * (1 - X[t])  ,  W >= 0. The sum of all W and of the chosen paths' times is
minimised. As more V and W only cost, both inequalities are tight and the maxima need no binary of their own: only the
choices X are binary. Waiting is the work ahead *before* a request; LEO's equations add its own service to it a second
time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.paths.request_sequence import Sequence
from penstock.paths.route_table import RouteTable

_GAP = 1e-4
"""The relative gap to the optimum that a window's decisions may have."""


def optimal_choices(table: RouteTable, sequence: Sequence, horizon: int) -> Array:
    """A path for each request of the sequence; those that may not choose keep their only path."""
    if horizon < 1:
        raise PenstockError(f"A horizon of {horizon} requests: give at least 1.", code="value-out-of-range")
    loads = _loads(table)
    count, kept = len(sequence.arrivals), max(1, horizon // 2)
    choices = np.empty(count, np.int32)
    work = np.zeros(len(loads.capacity))
    for start in range(0, count, kept):
        window = slice(start, min(start + horizon, count))
        gaps = np.diff(sequence.arrivals[window.start : window.stop + 1])
        chosen = _decide(table, loads, sequence.types[window], gaps, work)
        end = min(start + kept, count)
        choices[start:end] = chosen[: end - start]
        for request in range(start, end):
            gap = sequence.arrivals[request + 1] - sequence.arrivals[request] if request + 1 < count else 0.0
            work = np.maximum(work + loads.demand[choices[request]] - gap, 0.0)
    return choices


@dataclass(frozen=True)
class _Loads:
    demand: Array  # [paths, resources]: service of all visits, divided by the capacity
    service: Array  # [paths, resources]: service of the longest visit
    capacity: Array  # [resources]


def _loads(table: RouteTable) -> _Loads:
    """The demands of paths on the resources that not all paths of a type load alike."""
    demand, service = path_demands(table)
    unlike = [
        any(np.ptp(demand[list(table.paths_of(kind)), each]) > 0 for kind in range(len(table.types)))
        for each in range(demand.shape[1])
    ]
    capacity = table.routes.capacity[unlike].astype(np.float64)
    return _Loads(demand[:, unlike] / capacity, service[:, unlike], capacity)


def path_demands(table: RouteTable) -> tuple[Array, Array]:
    """Microseconds of service for each path and resource: of all visits together, and of the longest one."""
    shape = len(table.paths), len(table.resources)
    demand, longest = np.zeros(shape), np.zeros(shape)
    for path in range(shape[0]):
        for visit in table.visits_of(path):
            resource, service = table.routes.resource[visit], table.routes.service[visit]
            demand[path, resource] += service
            longest[path, resource] = max(longest[path, resource], service)
    return demand, longest


def _decide(table: RouteTable, loads: _Loads, kinds: Array, gaps: Array, work: Array) -> Array:
    """Paths of the requests of one window; `work` is ahead of the first."""
    # Imported here: every worker of a cluster has the table of selectors, few use this one, and a solver takes long to
    # import.
    from scipy.optimize import Bounds, milp

    program = _Program(table, loads, kinds, gaps, work)
    found = milp(
        program.costs(),
        constraints=program.constraints(),
        bounds=Bounds(program.low(), program.high()),
        integrality=program.integrality(),
        options={"mip_rel_gap": _GAP},
    )
    if found.x is None:
        raise PenstockError(f"HiGHS found no choice of paths ({found.message}).", code="external-failure")
    return program.chosen(found.x)


class _Program:
    """One window: columns are X (a request's paths), then V and W (a request's resources)."""

    def __init__(self, table: RouteTable, loads: _Loads, kinds: Array, gaps: Array, work: Array) -> None:
        self._table, self._loads, self._gaps, self._work = table, loads, gaps, work
        self._paths = [list(table.paths_of(int(kind))) for kind in kinds]
        self._first = np.cumsum([0, *(len(paths) for paths in self._paths)])
        self._requests, self._resources = len(kinds), len(work)
        self._size = int(self._first[-1]) + 2 * self._requests * self._resources
        total = loads.demand.max(axis=0) * self._requests + work
        self._most = total + 1.0
        """An upper bound on the work ahead of any request of the window."""
        self._rows: list[tuple[dict[int, float], float, float]] = []
        for request in range(self._requests):
            self._add_request(request)

    def costs(self) -> Array:
        """The chosen paths' times and all waits."""
        out = np.zeros(self._size)
        for request, paths in enumerate(self._paths):
            out[self._first[request] : self._first[request + 1]] = self._table.routes.end_to_end[paths]
        out[self._wait(0, 0) if self._resources else self._size :] = 1.0
        return out

    def constraints(self) -> Any:
        """All inequalities as one sparse matrix."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        row = [place for place, (terms, _, _) in enumerate(self._rows) for _ in terms]
        column = [each for terms, _, _ in self._rows for each in terms]
        value = [each for terms, _, _ in self._rows for each in terms.values()]
        matrix = coo_array((value, (row, column)), shape=(len(self._rows), self._size)).tocsr()
        return LinearConstraint(matrix, [low for _, low, _ in self._rows], [high for _, _, high in self._rows])

    def integrality(self) -> Array:
        """1 for the choices, which are binary, and 0 for the rest."""
        binary: Array = np.arange(self._size) < self._first[-1]
        return binary.astype(np.int64)

    def low(self) -> Array:
        """Nothing is negative, and the work ahead of the first request is known."""
        out = np.zeros(self._size)
        out[self._ahead(0, 0) : self._ahead(0, 0) + self._resources] = self._work
        return out

    def high(self) -> Array:
        """Choices are at most 1."""
        out = np.full(self._size, np.inf)
        out[: self._first[-1]] = 1.0
        return out

    def chosen(self, solution: Array) -> Array:
        """The path of each request."""
        return np.array(
            [
                paths[int(np.argmax(solution[self._first[request] : self._first[request + 1]]))]
                for request, paths in enumerate(self._paths)
            ],
            np.int32,
        )

    def _ahead(self, request: int, resource: int) -> int:
        return int(self._first[-1]) + request * self._resources + resource

    def _wait(self, request: int, resource: int) -> int:
        return self._ahead(self._requests, 0) + request * self._resources + resource

    def _add_request(self, request: int) -> None:
        columns = range(int(self._first[request]), int(self._first[request + 1]))
        self._rows.append((dict.fromkeys(columns, 1.0), 1.0, 1.0))
        for resource in range(self._resources):
            demand = self._loads.demand[self._paths[request], resource]
            if request + 1 < self._requests:
                terms = {self._ahead(request + 1, resource): 1.0, self._ahead(request, resource): -1.0}
                terms |= {column: -need for column, need in zip(columns, demand, strict=True) if need > 0}
                self._rows.append((terms, -float(self._gaps[request]), np.inf))
            if demand.max() > 0:
                self._add_wait(request, resource, columns)

    def _add_wait(self, request: int, resource: int, columns: range) -> None:
        """W >= V - (1 - 1/c) * service - M * (1 - X), for the paths that go over the resource."""
        services, most = self._loads.service[self._paths[request], resource], float(self._most[resource])
        beside = 1.0 - 1.0 / float(self._loads.capacity[resource])
        terms = {self._wait(request, resource): 1.0, self._ahead(request, resource): -1.0}
        terms |= {
            column: -most + beside * service for column, service in zip(columns, services, strict=True) if service > 0
        }
        self._rows.append((terms, -most, np.inf))


# The fluid bound, which no selector can beat: a linear program over rates instead of requests.


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
    from scipy.optimize import linprog

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
    from scipy.optimize import linprog

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
