"""Carry a placed workload out under a policy's terms: what happened when, and how long it took."""

from time import perf_counter
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.simulate.engine import open_run, run
from penstock.simulate.rate_policy import Case
from penstock.simulate.sharing.families import PRIORITY, PROPORTIONAL
from penstock.simulate.state import CHANGES, DONE, TIMED, Record, Scratch, Terms, record_for, scratch_for
from penstock.simulate.symmetry import MANY, quotient_of

_LEAST_MOMENTS = 64
_PATIENCE_S = 0.1  # a kernel hears no signal: it is left about so often
_NEVER = 1 << 62
_EQUALS = (PROPORTIONAL, PRIORITY)  # ways of sharing in which equal flows get equal rates


class SimulatedTimes(NamedTuple):
    """What a run wrote down; arrays without entries where it was not asked for."""

    makespan: float  # seconds
    events: int  # ends of tasks and flows that took time
    record: Record


class Executor:
    """Runs cases of one workload and length after each other, in memory that is used again."""

    def __init__(self, many: int = MANY) -> None:
        """Cases of at least `many` items in all iterations are simulated with one of each that behave alike."""
        self._many = many
        self._scratch: Scratch | None = None
        self._moments = _LEAST_MOMENTS

    def run(self, family: int, case: Case, terms: Terms, times: bool = False, segments: bool = False) -> SimulatedTimes:
        """Carry out a case; `times` writes down starts and ends, `segments` also every change of a flow's rate."""
        if family in _EQUALS and case.amounts.seconds.size + case.amounts.sizes.size >= self._many:
            quotient = quotient_of(case, terms)
            if quotient is not None:
                few = Executor(many=_NEVER).run(family, quotient.case, quotient.terms, times, segments)
                return SimulatedTimes(few.makespan, _timed(case), quotient.expanded(few.record))
        return self._run_all(family, case, terms, times, segments)

    def _run_all(self, family: int, case: Case, terms: Terms, times: bool, segments: bool) -> SimulatedTimes:
        """Carry out every item of a case."""
        iterations = len(case.amounts.seconds)
        if self._scratch is None:
            self._scratch = scratch_for(case.shape, iterations, len(case.routes.links))
        room = 8 * case.amounts.sizes.size if segments else 0
        while True:
            record = record_for(case.shape, iterations, times, room)
            self._carry_out(family, case, terms, self._scratch, record)
            numbers = self._scratch.numbers
            if numbers[CHANGES] <= room:
                break
            room = int(numbers[CHANGES])
        if numbers[DONE] != iterations * (case.shape.tasks + case.shape.flows):
            raise PenstockError(
                "The simulation stopped before everything had run: some item waits for a later iteration.",
                code="unexpected-failure",
            )
        record = record._replace(changes=record.changes[: numbers[CHANGES]])
        return SimulatedTimes(float(self._scratch.clock[0]), int(numbers[TIMED]), record)

    def _carry_out(self, family: int, case: Case, terms: Terms, scratch: Scratch, record: Record) -> None:
        """Run to the end, leaving the kernel often enough that Ctrl-C is heard."""
        seconds, sizes = case.amounts
        open_run(family, case.shape, case.routes, terms, scratch)
        while True:
            began = perf_counter()
            if run(
                family, case.shape, case.routes, seconds, case.slowness, sizes, terms, scratch, record, self._moments
            ):
                return
            took = perf_counter() - began
            if took < _PATIENCE_S / 4:
                self._moments *= 4
            elif took > _PATIENCE_S:
                self._moments = max(_LEAST_MOMENTS, self._moments // 2)


def _timed(case: Case) -> int:
    """How many tasks and flows of all iterations take time."""
    tasks = (case.amounts.seconds * case.slowness > 0).sum()
    return int(tasks + (case.amounts.sizes[:, case.routes.flow_path >= 0] > 0).sum())
