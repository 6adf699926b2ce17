"""Fields that jobs of earlier releases had: refused where a user writes one, kept where a run was started with it."""

import json

import pytest
import yaml

from in_process import refusal
from penstock.api import train
from penstock.train.internals import BY_MACHINE, REMOVED, Internals
from penstock.train.job import JobFields, job_fields, make_job, read_job, stored_job
from penstock.train.run_files.run_folder import RunFolder
from refusals import refused
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

MERGED = {
    "layer_sizes": [2048, 2048, 2048],
    "saint_size": 4000,
    "clusters_per_batch": 4,
    "partition": None,
    "link_loss": "bce",
    "node_type": None,
    "edge_type": None,
    "one_hot": False,
}
"""As a job of an earlier release had them by default; so it had all internals."""
OTHERS = {
    "order": "transform",
    "seeds_depth": 2,
    "sample_depth": 3,
    "gather_threads": 2,
    "gather_depth": 3,
    "transfer_threads": 2,
    "transfer_depth": 2,
    "trace_batches": 3,
    "reuse_mb": 7,
    "inference_mb": 1,
    "staleness": 2,
    "groups": 3,
    "timed_choices": [],
    "unchecked": True,
    "keep_checkpoints": 5,
    "min_delta": 0.01,
    "max_classes": 12_000,
    "scale_features": "rows",
    "largest_component": True,
    "draws": 2,
}
"""Values that a run of one machine was started with, none of them the default."""
WHOLE = {
    "scope": "all",
    "pipeline": "inter",
    "replicate_costs": [1e-6, 1e-7, 1e-6, 1e-7],
    "exchange": "replicate",
    "train_on_validation": True,
}


def as_of_an_earlier_release(run):
    """One document with every field that there was."""
    decided = yaml.safe_load((run / "decided.yaml").read_text())
    job = yaml.safe_load((run / "job.yaml").read_text())
    (run / "job.yaml").write_text(yaml.safe_dump({**job, **decided, **MERGED}))
    (run / "decided.yaml").unlink()


def test_every_removed_field_has_a_sentence():
    assert set(REMOVED) == {*Internals.model_fields, *MERGED}
    assert not set(REMOVED) & set(JobFields.model_fields)
    assert not [name for name, said in REMOVED.items() if said.endswith(".")]


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_field_is_refused(name, tmp_path, monkeypatch, capsys):
    with refused(f"unknown-name {name}") as said:
        make_job({name: 1}, "job.yaml")
    assert str(said.value) == f"job.yaml has {name!r}, which is no field any more: {REMOVED[name]}."
    (tmp_path / "job.yaml").write_text(f"{name}: 1\n")
    assert REMOVED[name] in refusal(monkeypatch, capsys, "train", tmp_path / "job.yaml")
    flag = f"--{name.replace('_', '-')}"
    found = refusal(monkeypatch, capsys, "train", flag, "1")
    assert (found.code, str(found)) == ("usage", f"{flag} is no flag any more: {REMOVED[name]}.")


def test_python_and_loaders_refuse_them_too():
    with refused("unknown-name staleness newest"):
        train(community_graph(), staleness=2)
    from penstock.api import loader

    with refused("unknown-name sample_depth"):
        loader(community_graph(), sample_depth=2)


def test_a_run_of_an_earlier_release_goes_on_as_it_began(tmp_path):
    graph, fields = community_graph(), {**OTHERS, "model": "gcn", "patience": 9, "checkpoint_steps": 3}
    whole = trained(graph, tmp_path / "whole", **fields, epochs=4)
    part = trained(graph, tmp_path / "part", **fields, epochs=2)
    as_of_an_earlier_release(part.path)
    again = train(graph, resume=part.path, epochs=4)
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(part.path))
    assert len(list((part.path / "checkpoints").glob("step-*"))) == OTHERS["keep_checkpoints"]
    job = RunFolder.open(part.path).job()
    assert {name: job.model_dump(mode="json")[name] for name in OTHERS} == OTHERS
    assert again.result["staleness"] == 2
    assert set(yaml.safe_load((part.path / "job.yaml").read_text())) == set(JobFields.model_fields)
    assert set(yaml.safe_load((part.path / "decided.yaml").read_text())) == set(Internals.model_fields)


def test_a_whole_graphs_run_of_an_earlier_release_goes_on(tmp_path):
    graph, fields = community_graph(), {**WHOLE, "sampler": "whole", "layers": 2, "bins": 2}
    whole = trained(graph, tmp_path / "whole", **fields, epochs=4)
    part = trained(graph, tmp_path / "part", **fields, epochs=2)
    as_of_an_earlier_release(part.path)
    train(graph, resume=part.path, epochs=4)
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(part.path))
    assert RunFolder.open(part.path).job().scope == "all"


@pytest.mark.parametrize(
    ("former", "fields"),
    [
        ({"sampler": "ladies", "layer_sizes": [40, 30], "fanouts": [15, 10, 5]}, {"fanouts": [40, 30]}),
        ({"sampler": "saint-walk", "saint_size": 20, "layers": 2}, {"batch_size": 20}),
        ({"sampler": "cluster", "clusters_per_batch": 2, "partition": "parts"}, {"batch_size": 2, "clusters": "parts"}),
        ({"sampler": "cluster", "clusters_per_batch": 2, "clusters": 8}, {"batch_size": 2, "clusters": 8}),
        ({"sampler": "neighbour", "fanouts": [4]}, {"fanouts": [4], "batch_size": 1024, "clusters": 100}),
        ({"link_loss": "softmax", "loss": None}, {"loss": "softmax", "link_loss": "softmax"}),
        ({"link_loss": "softmax", "loss": "mine.py:loss"}, {"loss": "mine.py:loss", "link_loss": "bce"}),
        ({"link_loss": "bce", "loss": None}, {"loss": None, "link_loss": "bce"}),
        ({"node_type": "paper", "task": "auto"}, {"target": "paper", "node_type": "paper", "edge_type": None}),
        ({"edge_type": "a__b__c"}, {"target": "a__b__c", "node_type": None, "edge_type": "a__b__c"}),
        ({"node_type": "a", "edge_type": "a__b__c", "task": "edge-regression"}, {"target": "a__b__c"}),
        ({"node_type": "a", "edge_type": "a__b__c", "task": "node-regression"}, {"target": "a"}),
        (
            {"one_hot": True, "embedding": 32, "model": "rgcn", "bases": 3, "hidden": 8},
            {"embedding": "one-hot", "embedding_width": 32},
        ),
    ],
)
def test_sizes_of_an_earlier_release_have_todays_names(former, fields):
    document = {**MERGED, "batch_size": 1024, **former}
    job = stored_job(document, "plan.json")
    assert {name: getattr(job, name) for name in fields} == fields


def test_samplers_have_sizes_of_their_own():
    assert make_job({"sampler": "ladies"}).fanouts == [2048, 2048, 2048]
    assert make_job({"sampler": "saint-edge"}).batch_size == 4000
    assert make_job({"sampler": "cluster"}).batch_size == 4
    assert make_job({"sampler": "cluster", "batch_size": 9, "clusters": "12"}).clusters == 12
    with refused("invalid-document clusters 2"):
        make_job({"clusters": "1"})


def test_documents_between_processes_keep_internals():
    """As setups of clusters, plans and jobs of queues have them: one document, written by this release or before."""
    job = make_job({"lr": 0.1}, internals={**OTHERS, "order": "auto"})
    document = json.loads(json.dumps(job.model_dump(mode="json")))
    assert stored_job(document, "the plan") == job
    assert stored_job({**document, **MERGED}, "the plan", {"lr": 0.2}).staleness == 2
    with refused("unknown-name staleness"):
        stored_job(document, "the plan", {"staleness": 3})
    with refused("unknown-name learning"):
        stored_job({**document, "learning": 3}, "the plan")


def test_a_repeated_run_does_as_it_did_and_a_changed_one_decides_again(tmp_path):
    run = trained(community_graph(), tmp_path / "run", order="transform", staleness=1, model="gcn").path
    same = read_job(run / "job.yaml", {"run": "other"})
    assert (same.order, same.staleness) == ("transform", 1)
    changed = read_job(run / "job.yaml", {"model": "gat", "heads": 2})
    assert (changed.order, changed.order_costs, changed.staleness) == ("auto", {}, 1)
    as_of_an_earlier_release(run)
    assert read_job(run / "job.yaml", {"run": "other"}).order == "transform"
    assert set(Internals.model_fields) >= BY_MACHINE
    (tmp_path / "mine.yaml").write_text((run / "job.yaml").read_text())
    with refused("unknown-name mine.yaml"):
        read_job(tmp_path / "mine.yaml")


def test_fields_and_internals_are_apart():
    written = job_fields(make_job({}, internals={"staleness": 3}))
    assert set(written) == set(JobFields.model_fields)
    with pytest.raises(AssertionError, match="lr"):
        make_job({}, internals={"lr": 0.1})
