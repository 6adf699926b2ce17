"""A run that was interrupted, however it was, ends with the weights of one that was not."""

import signal

import pytest
import torch

from penstock import PenstockError
from penstock.api import Run, train
from penstock.progress import Progress
from penstock.train.run_files import checkpoints
from refusals import refused
from training_graphs import (
    SMALL,
    assert_same_state,
    best_checkpoint,
    community_graph,
    facts_of,
    lines_of,
    newest_checkpoint,
    stage_threads,
    trained,
    typed_graph,
)


class Trouble(Progress):
    """Progress that calls `what` after some steps."""

    def __init__(self, step, what):
        super().__init__()
        self.left, self.what = step, what

    def advance(self, amount):
        self.left -= amount
        if self.left == 0:
            self.what()


def crash():
    raise RuntimeError("the power went out")


def interrupt():
    signal.raise_signal(signal.SIGINT)


class Foreign(torch.nn.Module):
    """A module that knows nothing of Penstock and draws from torch's generator."""

    def __init__(self):
        super().__init__()
        self.own, self.others = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.drop, self.norm = torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(4)

    def forward(self, x, edge_index):
        for _ in range(2):
            sums = torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])
            x = self.drop(self.norm(self.own(x) + self.others(sums) / 4))
        return x


CASES = {
    "dropout, batch norm, step schedule": (
        community_graph,
        {"norm": "batch", "input_dropout": 0.1, "schedule": "StepLR", "schedule_options": {"step_size": 1}},
    ),
    "embeddings, adagrad, warm restarts": (
        lambda: community_graph(features=False),
        {
            "embedding": 8,
            "embedding_optimiser": "adagrad",
            "schedule": "CosineAnnealingWarmRestarts",
            "schedule_options": {"T_0": 2},
        },
    ),
    "typed, embeddings of one type, milestones": (
        typed_graph,
        {"model": "rgcn", "embedding": 8, "schedule": "MultiStepLR", "schedule_options": {"milestones": [1, 2]}},
    ),
    "attention, plateau": (
        community_graph,
        {"model": "gatv2", "attention_dropout": 0.3, "schedule": "ReduceLROnPlateau", "optimiser": "RAdam"},
    ),
    "momentum, one cycle, clipping": (
        community_graph,
        {
            "optimiser": "SGD",
            "optimiser_options": {"momentum": 0.9},
            "schedule": "OneCycleLR",
            "schedule_options": {"max_lr": 0.1, "total_steps": 5},
            "clip": 1.0,
        },
    ),
    "links with an mlp": (
        community_graph,
        {"task": "link-prediction", "scorer": "mlp", "batch_size": 256, "rank_against": 20, "negatives": "joint"},
    ),
    "walks": (community_graph, {"sampler": "saint-walk", "batch_size": 20, "layers": 2}),
    "validated every other epoch": (community_graph, {"evaluate_every": 2, "epochs": 4}),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The runs that nothing happened to, made when they are first asked for."""
    folder, found = tmp_path_factory.mktemp("undisturbed"), {}

    def run_of(name):
        if name not in found:
            make, fields = CASES[name]
            found[name] = trained(make(), folder / str(len(found)), **{"epochs": 3, **fields})
        return found[name]

    return run_of


@pytest.mark.parametrize("name", CASES)
def test_weights_equal_those_of_an_undisturbed_run(name, undisturbed, tmp_path):
    whole = undisturbed(name)
    make, fields = CASES[name]
    graph, path = make(), tmp_path / "run"
    with refused("unexpected-failure"):
        trained(graph, path, **{"epochs": 3, **fields}, checkpoint_steps=3, progress=Trouble(5, crash))
    assert facts_of(path)["state"] == "failed"
    again = train(graph, resume=path, progress=Trouble(4, interrupt))
    assert again.state == "interrupted"
    run = train(graph, resume=path)
    assert run.state == "finished"
    assert_same_runs(whole, run)


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("minutes", "cost", "expected"),
    [
        (5.0, 0.0, [10, 30, 70, 150, 310, 610, 910]),
        # One that takes a second to write comes every 50 seconds at most, and a costly one as often as was asked for.
        (5.0, 1.0, [51, 102, 153, 234, 395, 696, 997]),
        (1.0, 30.0, [90, 180, 270, 360, 450, 540, 630]),
        (0.05, 0.0, [3, 6, 9, 12, 15, 18, 21]),
    ],
)
def test_the_first_checkpoints_come_soon_and_each_later_than_the_one_before(
    minutes, cost, expected, tmp_path, monkeypatch
):
    clock, written = Clock(), []

    def write(path, state):
        clock.now += cost
        written.append(clock.now)

    monkeypatch.setattr(checkpoints, "write_state", write)
    kept = checkpoints.Checkpoints(tmp_path, 0, minutes, 2, clock)
    # The state before the first step is written when the run begins.
    kept.save(0, -1, {})
    written.clear()
    began = clock.now
    while len(written) < len(expected):
        clock.now += 1.0
        if kept.due(int(clock.now)):
            kept.save(int(clock.now), -1, {})
    assert [round(each - began) for each in written] == expected


def test_a_run_killed_after_its_first_checkpoint_by_time_goes_on_from_there(tmp_path, monkeypatch):
    graph, path = community_graph(60), tmp_path / "run"
    whole = trained(graph, tmp_path / "whole", epochs=3)
    # Time enough for a checkpoint passes with every step.
    monkeypatch.setattr(checkpoints, "FIRST_S", 0.0)
    monkeypatch.setattr(checkpoints, "_SHARE", 1e9)
    with refused("unexpected-failure"):
        trained(graph, path, epochs=3, checkpoint_minutes=5, progress=Trouble(5, crash))
    assert newest_checkpoint(path)["standing"]["step"] == 4
    assert_same_runs(whole, train(graph, resume=path))


def test_an_interrupt_at_every_step(tmp_path):
    graph = community_graph(60)
    whole = trained(graph, tmp_path / "whole", epochs=3)
    steps = newest_checkpoint(whole.path)["standing"]["step"]
    path = tmp_path / "run"
    run = trained(graph, path, epochs=3, progress=Trouble(1, interrupt))
    for _ in range(steps - 1):
        assert run.state == "interrupted"
        run = train(graph, resume=path, progress=Trouble(1, interrupt))
    # The last step was done before the signal was heard: nothing is left to do.
    assert run.state == "finished"
    assert_same_runs(whole, run)


def test_a_module_of_ones_own(tmp_path):
    graph = community_graph()
    torch.manual_seed(5)
    whole = trained(graph, tmp_path / "whole", model=Foreign(), epochs=3)
    torch.manual_seed(5)
    path = tmp_path / "run"
    trained(graph, path, model=Foreign(), epochs=3, progress=Trouble(8, interrupt))
    torch.manual_seed(6)
    run = train(graph, Foreign(), resume=path)
    assert run.state == "finished"
    assert_same_runs(whole, run)


@pytest.mark.parametrize("step", [9, *(pytest.param(step, marks=pytest.mark.long) for step in (3, 20))])
def test_early_stopping_is_not_forgotten(step, tmp_path):
    graph, fields = community_graph(), {"epochs": 30, "patience": 2, "lr": 0.1}
    whole = trained(graph, tmp_path / "whole", **fields)
    assert whole.state == "stopped-early"
    path = tmp_path / "run"
    trained(graph, path, **fields, progress=Trouble(step, interrupt))
    run = train(graph, resume=path)
    assert run.state == "stopped-early"
    assert_same_runs(whole, run)


def test_resuming_a_run_that_ended_changes_nothing(tmp_path):
    graph, path = community_graph(), tmp_path / "run"
    for fields in ({"epochs": 2}, {"epochs": 30, "patience": 2, "lr": 0.1}):
        run = trained(graph, path, **fields, force=True)
        before, result = newest_checkpoint(path), run.result
        again = train(graph, resume=path)
        assert_same_state(before, newest_checkpoint(path))
        assert again.state == run.state
        assert (again.test, again.result["epochs"]) == (run.test, result["epochs"])


def test_more_epochs_than_asked_for_at_first(tmp_path):
    graph = community_graph()
    whole = trained(graph, tmp_path / "whole", epochs=5)
    path = tmp_path / "run"
    trained(graph, path, epochs=2)
    first = train(graph, resume=path, epochs=5, progress=Trouble(2, interrupt))
    assert first.state == "interrupted"
    # The longer run is what is gone on with.
    run = train(graph, resume=path)
    assert run.result["epochs"] == 5
    assert_same_runs(whole, run)
    with refused("invalid-document epochs"):
        train(graph, resume=path, epochs=0)
    with refused("conflicting-options"):
        train(graph, resume=path, lr=1.0)


def test_a_graph_folder_is_found_again_and_one_in_memory_must_be_given(tmp_path):
    graph = community_graph()
    mapped = graph.save(tmp_path / "graph")
    trained(mapped, tmp_path / "a", progress=Trouble(3, interrupt))
    assert train(resume=tmp_path / "a").state == "finished"
    trained(graph, tmp_path / "b", progress=Trouble(3, interrupt))
    with refused("graph-not-found"):
        train(resume=tmp_path / "b")
    assert Run.open(tmp_path / "b").state == "interrupted"


def test_logs_are_whole_after_a_crash_cut_them_short(tmp_path):
    graph, path = community_graph(), tmp_path / "run"
    whole = trained(graph, tmp_path / "whole", epochs=3)
    with pytest.raises(PenstockError):
        trained(graph, path, epochs=3, checkpoint_steps=3, progress=Trouble(9, crash))
    for name in ("metrics.jsonl", "events.jsonl"):
        text = (path / name).read_text()
        (path / name).write_text(text[:-9])
    run = train(graph, resume=path)
    assert_same_runs(whole, run)
    assert_is_a_trace(path)
    kinds = [record["kind"] for record in lines_of(path)]
    assert kinds.count("resumed") == 1
    assert [r["epoch"] for r in lines_of(path) if r["kind"] == "epoch"] == [0, 1, 2]


def test_a_notebook_goes_on_as_it_was(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    handler = signal.getsignal(signal.SIGINT)
    trained(community_graph(), tmp_path / "run", **{**SMALL, "threads": 2})
    assert torch.equal(torch.rand(4), expected)
    assert torch.get_num_threads() == threads
    assert signal.getsignal(signal.SIGINT) is handler
    assert stage_threads() == []


def assert_same_runs(whole, run):
    """Weights, optimiser, position and best model, and what was measured on the way."""
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(run.path))
    assert_same_state(best_checkpoint(whole.path), best_checkpoint(run.path))
    assert (whole.val, whole.test) == (run.val, run.test)
    measured = [
        [(r["epoch"], r["step"], r["loss"], r["lr"], r.get("val")) for r in lines_of(each.path) if r["kind"] == "epoch"]
        for each in (whole, run)
    ]
    assert measured[0] == measured[1]
    assert stage_threads() == []


def assert_is_a_trace(path):
    """The file is JSON once the comma behind its last event is a bracket."""
    import json

    text = (path / "events.jsonl").read_text().rstrip().removesuffix(",")
    return json.loads(text + "]")


def test_the_best_model_is_the_one_the_checkpoint_names(tmp_path):
    """A best model of later epochs, left by a process that was killed, is not taken for this one's."""
    graph = community_graph()
    run = trained(graph, tmp_path / "run", epochs=8, checkpoint_steps=2, keep_checkpoints=100, patience=0)
    folder = run.path / "checkpoints"
    short = trained(graph, tmp_path / "short", epochs=2, checkpoint_steps=2, keep_checkpoints=100, patience=0)
    steps = max(int(file.stem.split("-")[1]) for file in (short.path / "checkpoints").glob("step-*"))
    for file in folder.glob("step-*.ckpt"):
        if int(file.stem.split("-")[1]) > steps:
            file.unlink()
    (folder / "best-000008.ckpt").write_bytes(max(folder.glob("best-*")).read_bytes())
    again = train(resume=run.path, graph=graph, epochs=2)
    assert again.result["best_epoch"] == short.result["best_epoch"]
    assert_same_state(best_checkpoint(again.path), best_checkpoint(short.path))


def test_an_ended_run_stays_as_it_is(tmp_path):
    graph = community_graph()
    run = trained(graph, tmp_path / "run", epochs=2)
    again = train(resume=run.path, graph=graph)
    assert (again.state, again.result) == (run.state, run.result)
