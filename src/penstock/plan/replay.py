"""A plan simulated again: the workload, network, placement and amounts that its prediction came from."""

from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from penstock.cost.profile import Profile
from penstock.errors import PenstockError, nearest
from penstock.graph.documents import first_problem
from penstock.hardware.cluster import ClusterDocument
from penstock.plan.comparison import Comparison
from penstock.plan.document import Plan
from penstock.plan.placement import PlacedUnits
from penstock.plan.planner import comparison_of
from penstock.simulate.amounts import Amounts
from penstock.simulate.bound import Pace
from penstock.simulate.rates import policy_named
from penstock.simulate.scenario import Scenario


@dataclass(frozen=True, eq=False)
class Replay:
    """A plan's run in the simulator."""

    scenario: Scenario
    pace: Pace
    """What an iteration of the run takes, as the plan predicts it, under the policy that was asked for."""


def replay(plan: Plan, policy: str, iterations: int | None = None) -> Replay:
    """The plan's run under a flow policy; of the iterations that a plan is judged by, the first so many."""
    policy_named(policy)
    run = _comparison(plan)
    placed = _placed(plan, run)
    trial = run.trial(placed, policy)
    amounts = trial.timeline.case.amounts
    count = len(amounts.seconds)
    if iterations is not None and iterations > count:
        raise PenstockError(
            f"A plan is judged by {count} iterations: ask for at most {count} with --iterations.",
            code="value-out-of-range",
        )
    some = Amounts(amounts.seconds[:iterations], amounts.sizes[:iterations])
    speeds = np.array(run.machines.speeds)
    scenario = Scenario(run.load, run.problem.network, placed.machine_of, some, speeds)
    return Replay(scenario, Pace(trial.iteration_s, trial.lower_bound_s))


def _comparison(plan: Plan) -> Comparison:
    try:
        profile = Profile.model_validate(plan.profile)
        cluster = ClusterDocument.model_validate(plan.cluster)
    except ValidationError as error:
        raise PenstockError(
            f"The plan's profile or cluster is not valid: {first_problem(error)}.", code="invalid-document"
        ) from None
    return comparison_of(cluster, profile, plan.execution, plan.seed)


def _placed(plan: Plan, run: Comparison) -> PlacedUnits:
    """Where the plan says that tasks run, checked against the tasks and machines of its run."""
    numbers = {name: number for number, name in enumerate(run.machines.names)}
    planned = plan.machine_of()
    load = run.load
    places = np.zeros(load.tasks, np.int32)
    for task in range(load.tasks):
        own = load.task_names[load.beside[task]]
        if own not in planned:
            raise PenstockError(f"The plan does not say where {own} runs: plan again.", code="invalid-document")
        if planned[own] not in numbers:
            raise PenstockError(
                f"The plan places {own} on {planned[own]!r}{nearest(planned[own], numbers)}", code="unknown-name"
            )
        places[task] = numbers[planned[own]]
    return PlacedUnits(plan.placement, places, 0.0, 0, 0, 0.0)
