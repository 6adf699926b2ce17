"""Problems that can be solved are posed as meant; others get a sentence."""

import numpy as np
import pytest
from small_clusters import job, posed

from penstock.hardware.machines import star
from penstock.plan.placement import placement_problem
from penstock.simulate.workload import merge
from refusals import refused

PAIR = ([100.0, 100.0], [8.0, 8.0], [2.0, 2.0])


def test_stores_are_pinned_and_groups_are_workers_with_their_samplers() -> None:
    problem = posed(job(2, 2, 2), *PAIR)
    assert problem.home[problem.unit_of[problem.workload.tasks_of("store")]].tolist() == [0, 1]
    names = [[problem.workload.task_names[unit] for unit in group] for group in problem.groups]
    assert names == [["worker0", "sampler0.0", "sampler0.1"], ["worker1", "sampler1.0", "sampler1.1"]]
    assert problem.demands[problem.groups[0]].sum(axis=0).tolist() == [5.0, 1.0]


def test_ring_steps_share_their_workers_unit() -> None:
    problem = posed(job(2, 2, 1, servers=0), *PAIR)
    load = problem.workload
    numbers = dict(zip(load.task_names, problem.unit_of.tolist(), strict=True))
    assert numbers["ring0.1"] == numbers["worker0"]
    assert numbers["ring1.0"] == numbers["worker1"] != numbers["worker0"]


def test_each_of_two_jobs_has_stores_on_the_first_machines_and_groups_of_its_own() -> None:
    load = merge({"a": job(2, 1, 1, servers=0), "b": job(2, 1, 1)})
    problem = posed(load, *PAIR)
    assert problem.home[problem.unit_of[load.tasks_of("store")]].tolist() == [0, 1, 0, 1]
    assert len(problem.groups) == 2


def test_tasks_are_pinned_by_name() -> None:
    nics = np.array([1e8, 1e8])
    rooms = {"cores": [8, 8], "gpus": [2, 2]}
    problem = placement_problem(job(2, 1, 1), star(nics, nics), rooms, {"store0": "m1", "worker0": "m0"})
    assert problem.pinned[problem.workload.task_names.index("store0")] == 1
    assert problem.pinned[problem.workload.task_names.index("store1")] == -1
    with refused("unknown-name m7"):
        placement_problem(job(2, 1, 1), star(nics, nics), rooms, {"store0": "m7"})
    with refused("unknown-name store0"):
        placement_problem(job(2, 1, 1), star(nics, nics), rooms, {"stor0": "m0"})


@pytest.mark.parametrize(
    ("stores", "workers", "cores", "gpus", "sentence"),
    [
        (2, 5, [20, 20], [2, 2], "infeasible 5 4 1"),
        (2, 1, [9, 9], [0, 0], "infeasible 1"),
        (2, 4, [6, 6], [2, 2], "infeasible 4 1 13 12"),
        (2, 1, [1, 1], [1, 1], "infeasible 4 2"),
        (5, 1, [1, 1, 1, 1, 1], [1, 0, 0, 0, 0], "infeasible sampler0.0 2 1"),
        (
            3,
            3,
            [3, 3, 4],
            [0, 0, 4],
            "infeasible 2 3 1",
        ),
        (2, 4, [3, 10], [4, 0], "infeasible"),
        (3, 1, [8, 8], [2, 2], "infeasible 3 2"),
        (2, 1, [8, -1], [2, 2], "value-out-of-range m1 -1 0"),
        (2, 1, [8, float("nan")], [2, 2], "value-out-of-range m1"),
        (2, 1, [8, 8, 8], [2, 2], "shape-mismatch 3 2"),
    ],
)
def test_what_cannot_be_placed_gets_a_sentence(
    stores: int, workers: int, cores: list[float], gpus: list[float], sentence: str
) -> None:
    with refused(sentence):
        posed(job(stores, workers, 1), [100.0] * len(gpus), cores, gpus)


def test_pinned_tasks_must_fit_and_resources_be_known() -> None:
    nics = np.array([1e8])
    with refused("option-missing"):
        placement_problem(job(1, 1, 1), star(nics, nics), {"cores": [8]})
    with refused("infeasible m0 2 1"):
        placement_problem(job(1, 1, 1), star(nics, nics), {"cores": [1], "gpus": [1]}, {"sampler0.0": "m0"})
    with refused("value-out-of-range 0"):
        placement_problem(job(1, 1, 1), star(nics, nics), {"cores": [8], "gpus": [1]}, speeds=[0])


def test_a_single_machine_must_have_all_of_what_a_task_needs() -> None:
    with refused("infeasible worker0 1"):
        posed(job(2, 1, 1), [100.0, 100.0], [5.0, 0.0], [0.0, 5.0])
