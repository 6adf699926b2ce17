"""The optimum, or the best schedule and bound found in time, by OR-tools' CP-SAT solver (the extra `shop`)."""

from typing import Any

from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument
from penstock.processes import default_threads
from penstock.simulate.shop.schedule import NoOptions, Pick, Scheduler, ShopSchedule, in_order_of_arrival, placed
from penstock.simulate.shop.shop import Shop

_TICKS = 1_000_000
"""Ticks into which the longest schedule is divided if times have fractions: the solver supports only integers."""


class CpSatOptions(StrictDocument):
    """How long the solver may take."""

    seconds: float = Field(10.0, gt=0, description="time after which the best schedule so far is taken")
    threads: int = Field(0, ge=0, description="threads of the solver; 0: all cores; 1: the same schedule every time")


def solved(shop: Shop, options: CpSatOptions) -> ShopSchedule:
    """The best schedule that was found, with the proved lower bound."""
    model = _Model(shop, in_order_of_arrival(shop, NoOptions()))
    return model.solved(options)


class _Model:
    """Optional intervals, one for each choice; one route per job and one choice per operation are used."""

    def __init__(self, shop: Shop, known: ShopSchedule) -> None:
        self._cp = _solver()
        self._shop, self._known = shop, known
        times = [choice.time for job in shop.jobs for route in job for operation in route for choice in operation]
        whole = all(time == int(time) for time in times)
        self._scale = 1.0 if whole or not known.makespan else _TICKS / known.makespan
        self._horizon = int(sum(self._ticks(step.end - step.start) for step in known.steps))
        self._model = self._cp.CpModel()
        self._routes: list[list[Any]] = []
        self._choices: dict[tuple[int, int, int, int], tuple[Any, Any]] = {}
        self._on_machines: list[list[Any]] = [[] for _ in shop.machines]
        self._makespan = self._model.new_int_var(0, self._horizon, "makespan")
        for job in range(len(shop.jobs)):
            self._add_job(job)
        for intervals in self._on_machines:
            self._model.add_no_overlap(intervals)
        self._model.minimize(self._makespan)
        self._hint()

    def _ticks(self, time: float) -> int:
        """A time in ticks, rounded up, so that a schedule in ticks leaves room for the times themselves."""
        return int(-(-time * self._scale // 1))

    def _add_job(self, job: int) -> None:
        model, routes = self._model, self._shop.jobs[job]
        taken = [model.new_bool_var(f"{job}/{number}") for number in range(len(routes))]
        model.add_exactly_one(taken)
        self._routes.append(taken)
        for number, route in enumerate(routes):
            before = None
            for place, operation in enumerate(route):
                start = model.new_int_var(0, self._horizon, "")
                end = model.new_int_var(0, self._horizon, "")
                used = []
                for machine, time in operation:
                    use, ticks = model.new_bool_var(""), self._ticks(time)
                    interval = model.new_optional_interval_var(start, ticks, end, use, "")
                    self._on_machines[machine].append(interval)
                    self._choices[job, number, place, machine] = use, start
                    used.append(use)
                model.add(sum(used) == taken[number])
                if before is not None:
                    model.add(start >= before)
                before = end
            model.add(self._makespan >= before).only_enforce_if(taken[number])

    def _hint(self) -> None:
        """Give the solver a known schedule to start from."""
        for job, taken in enumerate(self._routes):
            for number, variable in enumerate(taken):
                self._model.add_hint(variable, number == self._known.routes[job])
        for step in self._known.steps:
            use, _ = self._choices[step.job, self._known.routes[step.job], step.operation, step.machine]
            self._model.add_hint(use, True)

    def solved(self, options: CpSatOptions) -> ShopSchedule:
        """Solve, and place the operations in the order of their starts, so that none waits without need."""
        solver = self._cp.CpSolver()
        solver.parameters.max_time_in_seconds = options.seconds
        solver.parameters.num_workers = options.threads or default_threads()
        status = solver.solve(self._model)
        # The solver's bound is in rounded-up ticks: rounding adds less than a tick per operation.
        most = sum(max(map(len, job)) for job in self._shop.jobs)
        slack = 0 if self._scale == 1.0 else most
        proved = max(0.0, (solver.best_objective_bound - slack) / self._scale)
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return ShopSchedule(self._known.routes, self._known.steps, min(proved, self._known.makespan))
        routes = tuple(next(n for n, each in enumerate(taken) if solver.value(each)) for taken in self._routes)
        chosen = [
            (solver.value(start), place, job, machine)
            for (job, number, place, machine), (use, start) in self._choices.items()
            if number == routes[job] and solver.value(use)
        ]
        found = placed(self._shop, routes, [Pick(job, machine) for _, _, job, machine in sorted(chosen)])
        best = min(found, self._known, key=lambda schedule: schedule.makespan)
        return ShopSchedule(best.routes, best.steps, min(proved, best.makespan))


def _solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise PenstockError(
            "Schedule cp-sat needs OR-tools: install it with `pip install 'penstock[shop]'`, or use another schedule.",
            code="not-installed",
        ) from None
    return cp_model


CP_SAT = Scheduler("cp-sat", solved, CpSatOptions)
