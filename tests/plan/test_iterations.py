"""What is simulated of large clusters: fewer iterations and flows, as many bytes."""

import numpy as np
import pytest

from penstock.plan.comparison import draw_iterations
from penstock.plan.placement import Budget
from penstock.plan.workloads.mini_batch import mini_batch_template
from penstock.progress import SILENT
from penstock.simulate.workload import Quantiles
from plan_profiles import comparison, machines_of_rates, mini_batch, profile_of

PARTS = 40


def large() -> tuple:
    load = mini_batch_template(profile_of(PARTS, PARTS), mini_batch([f"store-m{k}" for k in range(PARTS)]))
    return load, draw_iterations(load, 0, {"features": Quantiles([0.5, 1.0, 1.5])}, 10, "store")


def test_a_large_cluster_reads_the_same_bytes_in_fewer_flows() -> None:
    load, drawn = large()
    assert drawn.turns > 1 and drawn.period % drawn.turns == 0
    for amounts in (drawn.searched, drawn.judged):
        np.testing.assert_allclose(amounts.sizes.mean(axis=0), load.flow_bytes, rtol=1e-9)
    reads = np.array([kind in ("lists", "features") for kind in load.flow_kinds])
    assert (drawn.searched.sizes[:, reads] > 0).mean() < 1.2 / drawn.turns
    # No part sends much more in one iteration than in another.
    features = np.array([kind == "features" for kind in load.flow_kinds])
    sender = load.beside[load.sources]
    sent = np.array([np.bincount(sender[features], row[features]) for row in drawn.searched.sizes])
    assert (sent.max(axis=0) < 1.5 * sent.mean(axis=0)).all()


def test_the_part_that_a_worker_reads_most_from_is_read_in_every_iteration() -> None:
    load, drawn = large()
    near = np.flatnonzero((np.array(load.flow_kinds) == "features") & (load.flow_bytes > 5e5))
    assert len(near) == PARTS
    assert (drawn.searched.sizes[:, near] > 0).all()


def test_small_clusters_are_simulated_as_they_are() -> None:
    load = mini_batch_template(profile_of(3, 3), mini_batch([f"store-m{k}" for k in range(3)]))
    drawn = draw_iterations(load, 0, {}, 10)
    assert drawn.turns == 1 and len(drawn.judged.seconds) > 3 * drawn.period


@pytest.mark.parametrize(
    ("machines", "read", "many"), [(20, 8, 500), pytest.param(32, 16, 1_000, marks=pytest.mark.long)]
)
def test_turns_change_the_pace_little(monkeypatch, machines, read, many) -> None:
    """The same cluster with and without them, where batches differ as measured ones do."""
    import penstock.plan.comparison as module

    monkeypatch.setattr(module, "_READ", read)
    names = [f"store-m{k}" for k in range(machines)]
    found, turns, sizes = [], [], np.linspace(0.7, 1.3, 20).tolist()
    for limit in (many, 10**9):
        monkeypatch.setattr(module, "_MANY", limit)
        profile = profile_of(machines, machines, sizes=sizes)
        run = comparison(profile, mini_batch(names), machines_of_rates(*[2e8] * machines))
        trials = run.try_all(["spread"], ["fifo", "iteration-first"], Budget(10), SILENT)
        found.append([trial.iteration_s for trial in trials])
        turns.append(run.iterations.turns)
    assert turns == [2, 1]
    np.testing.assert_allclose(*found, rtol=0.08)


def test_turns_do_not_move_the_bound() -> None:
    """What links must carry follows from the means alone."""
    names, sizes = [f"store-m{k}" for k in range(32)], np.linspace(0.7, 1.3, 20).tolist()
    run = comparison(profile_of(32, 32, sizes=sizes), mini_batch(names), machines_of_rates(*[5e7] * 32))
    assert run.iterations.turns > 1
    (trial,) = run.try_all(["spread"], ["fifo"], Budget(10), SILENT)
    crossing = trial.placed.machine_of[run.load.sources] != trial.placed.machine_of[run.load.targets]
    machines = trial.placed.machine_of[run.load.targets][crossing]
    busiest = np.bincount(machines, run.load.flow_bytes[crossing]).max() / 5e7
    assert trial.lower_bound_s == pytest.approx(busiest, rel=1e-9)


def test_searches_keep_to_their_simulations() -> None:
    run = comparison(
        profile_of(4, 8), mini_batch([f"store-m{k}" for k in range(4)]), machines_of_rates(1e7, 2e7, 3e7, 4e7)
    )
    for placement in ("etp", "search"):
        free, few = (
            run.try_all([placement], ["fair"], Budget(3000, simulations=most), SILENT)[0].placed for most in (None, 2)
        )
        # Those that a search starts from are four constructions, or the one of etp.
        assert few.simulated <= 2 + 4 < free.simulated
        assert few.steps == free.steps or placement == "search"
    assert (
        run.simulations
        > 100
        > 10
        > comparison(
            profile_of(40, 40), mini_batch([f"store-m{k}" for k in range(40)]), machines_of_rates(*[1e9] * 40)
        ).simulations
        >= 4
    )
