"""Runs that differ in their seed share nothing that is drawn; runs of earlier releases keep their own draws."""

from itertools import islice

import numpy as np
import pytest
import torch
import yaml

from penstock import loader
from penstock.api import train
from penstock.graph.data import splits_by_ratio
from penstock.nn.drop import drop, dropping
from penstock.pipeline.schedule import Schedule
from penstock.sampling.block import BatchKey
from penstock.sampling.links import EdgeBatcher, Uniform
from penstock.sampling.neighbours import NeighbourSampler
from penstock.store.embedding import draw_rows
from penstock.store.initial_rows import InitialRows
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.run_files.checkpoints import read_state, write_state
from penstock.train.run_files.run_folder import RunFolder
from refusals import refused
from training_graphs import SMALL, assert_same_state, community_graph, newest_checkpoint, trained

SEEDS = range(100)


def different(drawn):
    """How many of some arrays are different from all others."""
    return len({np.ascontiguousarray(each).tobytes() for each in drawn})


def test_no_two_seeds_share_an_order_or_a_batch():
    batches = [
        planned for seed in SEEDS for planned in islice(Schedule(np.arange(256), 64, seed).from_position(), 4 * 8)
    ]
    assert different([np.sort(planned.seeds) for planned in batches]) == len(batches)
    orders = [Schedule(np.arange(256), 256, seed)._order(epoch) for seed in SEEDS for epoch in range(8)]
    assert different(orders) == len(orders)


def test_orders_of_small_seeds_are_uncorrelated():
    """Of 100 seeds and 8 epochs, no two orders are nearer than 800 independent ones would be."""
    ranks = np.array([np.argsort(Schedule(np.arange(512), 512, seed)._order(e)) for seed in SEEDS for e in range(8)])
    found = np.corrcoef(ranks) - np.eye(len(ranks))
    # The largest of 320,000 normal deviations is about 4.7 standard deviations of 1 / sqrt(512).
    assert np.abs(found).max() < 6 / np.sqrt(512)


def test_no_two_seeds_share_neighbours_negatives_or_dropout():
    graph = community_graph(300, degree=12)
    sampler, ((kind, _),) = NeighbourSampler(graph, [4, 4]), graph.edges.items()
    batcher = EdgeBatcher(graph, kind, negatives=Uniform(1))
    keys = [BatchKey(seed, epoch, batch) for seed in SEEDS for epoch in range(4) for batch in range(2)]
    blocks = [sampler.sample(np.arange(64), key).blocks[0] for key in keys]
    assert different([np.concatenate([block.indptr, block.indices]) for block in blocks]) == len(keys)
    links = [batcher.batch(np.arange(64), key) for key in keys]
    assert different([each.nodes[kind[0]] for each in links]) == len(keys)
    assert different([mask_of(key) for key in keys]) == len(keys)


def mask_of(key):
    """What a batch's first dropout leaves of ones."""
    with dropping(key.purpose("dropout")):
        return drop(torch.ones(16, 16), 0.5).numpy()


def test_no_two_seeds_share_initial_weights_or_embeddings():
    graph = community_graph(features=False)
    rows, weights = [], []
    for seed in SEEDS:
        rows.append(np.empty((20, 8), np.float32))
        draw_rows("node", seed, None, InitialRows("normal", 0.1), rows[-1])
    for seed in range(20):
        session = make_session(make_job({**SMALL, "seed": seed}), graph)
        weights.append(np.concatenate([each.detach().numpy().ravel() for each in session.learned.parameters()]))
    together = np.array([each.ravel() for each in rows])
    assert np.abs(np.corrcoef(together) - np.eye(len(rows))).max() < 6 / np.sqrt(together.shape[1])
    assert different(weights) == 20
    drawn = np.array([each[each != 0][:500] for each in weights])
    assert np.abs(np.corrcoef(drawn) - np.eye(20)).max() < 0.3


def test_no_two_numbers_share_a_split():
    splits = [splits_by_ratio(np.arange(400), (0.5, 0.2, 0.3), number)["train"] for number in SEEDS]
    assert different(splits) == len(splits)


def as_of_an_earlier_release(run):
    """Take out of a run folder what earlier releases did not write."""
    job = yaml.safe_load((run / "decided.yaml").read_text())
    assert job.pop("draws") == 1
    (run / "decided.yaml").write_text(yaml.safe_dump(job))
    for file in (run / "checkpoints").glob("step-*.ckpt"):
        state = read_state(file)
        assert state.pop("draws") == 1
        write_state(file, state)


def test_a_run_of_an_earlier_release_resumes_with_its_own_draws(tmp_path):
    graph, fields = community_graph(), {"seed": 1, "dropout": 0.3, "draws": 1}
    whole = trained(graph, tmp_path / "whole", **{**fields, "epochs": 4})
    part = trained(graph, tmp_path / "part", **fields)
    as_of_an_earlier_release(tmp_path / "part")
    train(graph, resume=part.path, epochs=4)
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(part.path))
    new = trained(graph, tmp_path / "new", **{**fields, "epochs": 4, "draws": 3})
    with pytest.raises(AssertionError):
        assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(new.path))


def test_a_checkpoint_of_other_draws_is_refused(tmp_path):
    graph = community_graph()
    run = trained(graph, tmp_path / "run")
    job = yaml.safe_load((run.path / "decided.yaml").read_text())
    (run.path / "decided.yaml").write_text(yaml.safe_dump({**job, "draws": 1}))
    with refused("mismatched-inputs draws"):
        train(graph, resume=run.path, epochs=4)
    assert RunFolder.open(run.path).facts["state"] == "finished"


def test_a_loader_goes_on_with_the_draws_of_an_earlier_release():
    graph = community_graph()
    old = loader(graph, fanouts=[3], batch_size=32, seed=1, draws=1)
    wanted = [batch.n_id.numpy() for batch in old]
    state = old.state_dict() | {"epoch": 0, "batch": 1}
    state.pop("draws")
    with refused("mismatched-inputs draws=1"):
        loader(graph, fanouts=[3], batch_size=32, seed=1).load_state_dict(state)
    again = loader(graph, fanouts=[3], batch_size=32, seed=1, draws=1)
    again.load_state_dict(state)
    for batch, expected in zip(again, wanted[1:], strict=True):
        np.testing.assert_array_equal(batch.n_id.numpy(), expected)
