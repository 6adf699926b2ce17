"""What every policy promises: limits kept, the same plan from the same seed; and what ours adds."""

import numpy as np
import pytest
from small_clusters import ROOMY, all_feasible, job, posed

from penstock.plan.placement import PLACEMENTS, Budget, Evaluator, place
from penstock.plan.placement.problem import PlacementProblem
from penstock.plan.placement.search import constructions
from penstock.simulate.workload import merge
from refusals import refused

SHORT = Budget(steps=1500)


def medium() -> PlacementProblem:
    """4 machines, nearly full: 14 units to move, far too many placements to try."""
    return posed(job(4, 4, 2), *ROOMY)


@pytest.mark.parametrize("flows", ["oes", "iteration-first"])
def test_search_is_never_above_a_construction_or_etp_above_ifs(flows: str) -> None:
    problem = medium()
    evaluator = Evaluator(problem, flows)
    for seed in range(3):
        least = min(evaluator.makespan(units) for units in constructions(problem, seed))
        assert place(evaluator, "search", Budget(steps=400), seed).makespan <= least
        walked = place(evaluator, "etp", Budget(steps=100), seed)
        assert walked.makespan <= place(evaluator, "ifs", seed=seed).makespan


def test_chains_find_the_best_of_all_placements_of_a_small_problem() -> None:
    # 2^7 placements would be searched whole; 4 machines and 7 units are left to the chains.
    problem = posed(job(4, 2, 2, servers=0), [100.0, 500.0, 200.0, 500.0], [5.0, 3.0, 4.0, 5.0], [1.0, 1.0, 1.0, 0.0])
    evaluator = Evaluator(problem, "iteration-first")
    least = min(evaluator.makespan(units) for units in all_feasible(problem))
    assert place(Evaluator(problem, "iteration-first"), "search", Budget(steps=20_000)).makespan == pytest.approx(least)


def test_few_placements_are_searched_whole() -> None:
    problem = posed(job(2, 2, 1), [100.0, 500.0], [5.0, 4.0], [1.0, 2.0])
    evaluator = Evaluator(problem, "oes")
    least = min(evaluator.makespan(units) for units in all_feasible(problem))
    found = place(Evaluator(problem, "oes"), "search")
    assert found.makespan == least
    assert found.steps == 2**5


def test_nothing_to_move_is_placed_too() -> None:
    from penstock.plan.placement import placement_problem

    load = job(1, 1, 1)
    network = posed(load, [100.0], [9.0], [1.0]).network
    pins = dict.fromkeys(load.task_names, "m0")
    problem = placement_problem(load, network, {"cores": [9], "gpus": [1]}, pins)
    for policy in PLACEMENTS:
        assert (place(Evaluator(problem, "oes"), policy, SHORT).machine_of == 0).all()


def test_two_jobs_and_a_ring_are_placed_together() -> None:
    load = merge({"a": job(4, 2, 2, servers=0), "b": job(4, 2, 1)})
    problem = posed(load, *ROOMY)
    placed = place(Evaluator(problem, "iteration-first"), "search", SHORT)
    assert not problem.over_use(placed.machine_of[np.unique(problem.unit_of, return_index=True)[1]]).any()
    numbers = dict(zip(load.task_names, placed.machine_of.tolist(), strict=True))
    assert all(numbers[f"a/ring{w}.{k}"] == numbers[f"a/worker{w}"] for w in range(2) for k in range(2))


def test_a_second_is_enough_to_stop() -> None:
    placed = place(Evaluator(medium(), "oes"), "etp", Budget(steps=10**9, seconds=0.05))
    assert 0 < placed.steps < 10**9


def test_what_cannot_be_asked_for() -> None:
    evaluator = Evaluator(medium(), "oes")
    with refused("unknown-name search"):
        place(evaluator, "serch")
    with refused("value-out-of-range -1"):
        Budget(steps=-1)
    with refused("value-out-of-range 0"):
        Budget(seconds=0)


def test_a_search_never_ends_behind_a_placement_that_is_known() -> None:
    problem = medium()
    good = place(Evaluator(problem, "iteration-first"), "search", Budget(steps=20_000))
    again = place(Evaluator(problem, "iteration-first", known=[good.machine_of]), "search", Budget(steps=1), seed=5)
    assert again.makespan <= good.makespan
