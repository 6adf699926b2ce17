"""The order of seeds over epochs: always new, never new, or new from the elbow of the validation curve on."""

import json

import numpy as np
import pytest
from test_resume import Trouble, assert_same_runs, crash, interrupt

from penstock.api import train
from penstock.pipeline.grouped_batches import ReusedBatches
from penstock.pipeline.schedule import Position, Schedule
from penstock.report import write_report
from penstock.sampling import NeighbourSampler
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.batch_source import check_sampler_supports
from penstock.train.job import make_job
from penstock.train.job_options import past_elbow
from refusals import refused
from training_graphs import SMALL, community_graph, facts_of, lines_of, newest_checkpoint, trained

ELBOW = {"shuffle": "adaptive", "epochs": 12, "lr": 0.05}


def seeds_of(schedule):
    """The seeds of every epoch, in order."""
    epochs = [[] for _ in range(schedule.epochs)]
    for planned in schedule.from_position():
        epochs[planned.key.epoch].append(planned.seeds)
    return [np.concatenate(each) for each in epochs]


def test_epochs_before_the_first_shuffled_one_have_the_first_order():
    items = np.arange(40)
    always = seeds_of(Schedule(items, 7, 3, 5))
    never = seeds_of(Schedule(items, 7, 3, 5, shuffled_from=None))
    later = seeds_of(Schedule(items, 7, 3, 5, shuffled_from=3))
    for epoch in range(5):
        np.testing.assert_array_equal(never[epoch], always[0])
        np.testing.assert_array_equal(later[epoch], always[epoch] if epoch >= 3 else always[0])
    from_there = next(Schedule(items, 7, 3, 5, shuffled_from=3).from_position(Position(2, 4)))
    np.testing.assert_array_equal(from_there.seeds, always[0][28:35])
    assert from_there.key.epoch == 2, "neighbours are drawn anew"


def test_the_elbow_is_where_the_last_three_validations_gain_under_a_tenth():
    rising = [0.1, 0.5, 0.7, 0.8]
    assert not past_elbow(rising, "higher")
    # 0.7 gained in all, and 0.06 of it in the last three.
    assert past_elbow([*rising, 0.74, 0.81, 0.76], "higher") and not past_elbow([*rising, 0.82, 0.88], "higher")
    assert past_elbow([-value for value in [*rising, 0.74, 0.81, 0.76]], "lower")
    assert not past_elbow([-value for value in rising], "lower")
    assert past_elbow([0.5, 0.4, 0.4, 0.3], "higher"), "a curve that never rose"
    assert not past_elbow([0.5, 0.5, 0.5], "higher"), "three validations are too few"


def test_reused_batches_are_those_of_the_first_epoch_kept_or_not():
    graph = community_graph()
    sampler = NeighbourSampler(graph, [4, 3])
    drawn = []

    def sample(planned):
        drawn.append(planned.key)
        return sampler.sample(planned.seeds, planned.key)

    schedule = Schedule(np.arange(60), 20, 1, 4, shuffled_from=2)
    kept, tight = (ReusedBatches(schedule, megabytes).drawn_by(sample) for megabytes in (64, 0))
    for planned in schedule.from_position():
        first = planned.key.epoch if planned.key.epoch >= 2 else 0
        expected = sampler.sample(planned.seeds, planned.key._replace(epoch=first))
        for reused in (kept(planned), tight(planned)):
            for ours, theirs in zip(reused.blocks, expected.blocks, strict=True):
                np.testing.assert_array_equal(ours.indices, theirs.indices)
            assert reused.features == {} and reused.labels is None
            # What a carrier does must not be seen in the next epoch.
            reused.features["node"], reused.labels = np.zeros(1), np.zeros(1)
            reused.blocks.clear()
    # With room every batch of the two unshuffled epochs is drawn once, else twice.
    assert len(drawn) == (3 + 6) + (6 + 6)


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory):
    return trained(community_graph(), tmp_path_factory.mktemp("adaptive") / "run", **ELBOW)


def test_the_switch_is_in_result_records_checkpoint_and_report(adaptive):
    begun = adaptive.result["shuffled_from"]
    assert 4 < begun <= 12
    assert newest_checkpoint(adaptive.path)["standing"]["shuffled_from"] == begun - 1
    (record,) = [each for each in lines_of(adaptive.path) if "shuffled_from" in each]
    assert record["shuffled_from"] == record["epoch"] + 1 == begun - 1
    assert facts_of(adaptive.path)["result"]["shuffled_from"] == begun
    assert f"shuffled from epoch {begun} on" in write_report(adaptive.path).read_text()
    stages = adaptive.result["stages"]
    assert stages["compute"]["busy_s"] > 0, json.dumps(stages)


def test_before_the_switch_it_is_never_and_the_losses_differ_afterwards(adaptive, tmp_path):
    never = trained(community_graph(), tmp_path / "never", **{**ELBOW, "shuffle": "never"})
    begun = adaptive.result["shuffled_from"] - 1
    ours, theirs = (
        [each["loss"] for each in lines_of(run.path) if each["kind"] == "epoch"] for run in (adaptive, never)
    )
    assert ours[:begun] == theirs[:begun] and ours[begun] != theirs[begun]
    assert never.result["shuffled_from"] is None


@pytest.mark.parametrize(
    "fields",
    [
        {"reuse_batches": True},
        pytest.param({}, marks=pytest.mark.long),
        pytest.param({"sampler": "cluster", "clusters": 12}, marks=pytest.mark.long),
        pytest.param({"sampler": "labor"}, marks=pytest.mark.long),
        pytest.param({"sampler": "ladies", "fanouts": [40, 40]}, marks=pytest.mark.long),
        pytest.param({"sampler": "fastgcn", "fanouts": [40, 40]}, marks=pytest.mark.long),
    ],
)
def test_a_killed_run_ends_with_equal_bits(fields, tmp_path):
    graph, fields = community_graph(), {**ELBOW, **fields, "layers": 2}
    whole = trained(graph, tmp_path / "whole", **fields)
    steps, batches = whole.result["steps"], whole.result["batches"]
    begun = (whole.result["shuffled_from"] - 1) * batches
    path = tmp_path / "run"
    with refused("unexpected-failure"):
        trained(graph, path, **fields, checkpoint_steps=3, progress=Trouble(begun - 2, crash))
    # Once at the very step that ends the epoch of the switch, and once after it.
    left = begun - newest_checkpoint(path)["standing"]["step"]
    assert train(graph, resume=path, progress=Trouble(left, interrupt)).state == "interrupted"
    assert train(graph, resume=path, progress=Trouble(1, interrupt)).state == "interrupted"
    run = train(graph, resume=path)
    assert run.result["steps"] == steps
    assert run.result["shuffled_from"] == whole.result["shuffled_from"]
    assert_same_runs(whole, run)


def test_what_cannot_be_is_refused(tmp_path):
    graph = community_graph()
    with refused("conflicting-options reuse_batches shuffle always"):
        trained(graph, tmp_path / "a", reuse_batches=True)
    with refused("conflicting-options shuffle adaptive evaluate_every 0"):
        trained(graph, tmp_path / "b", shuffle="adaptive", evaluate_every=0)
    for sampler in SAMPLERS:
        job = make_job({**SMALL, "sampler": sampler, "shuffle": "never"})
        if SAMPLERS[sampler].shuffles:
            check_sampler_supports(job, graph)
        else:
            with refused(f"unsupported-combination {sampler} never"):
                check_sampler_supports(job, graph)
