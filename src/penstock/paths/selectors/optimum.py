"""`optimum`: a mixed-integer program that knows the requests to come."""

from penstock.errors import PenstockError
from penstock.paths.optimum import optimal_choices
from penstock.paths.rules.families import RECORDED
from penstock.paths.selectors.selector import Case, Prepared, Selector


def _prepare(case: Case) -> Prepared:
    if case.sequence is None:
        raise PenstockError(
            "The selector 'optimum' needs requests that are known ahead: use it in a simulation.",
            code="unsupported-combination",
        )
    return Prepared(choices=optimal_choices(case.table, case.sequence, case.horizon))


OPTIMUM = Selector(
    "optimum", RECORDED, "a mixed-integer program over the next requests of a recorded sequence", _prepare, online=False
)
