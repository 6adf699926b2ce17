"""Users' modules and losses in captured steps: captured where a trial shows that nothing differs, else launched with
the reason. Kernels are interpreted; a GPU's own refusals are tested in test_captured."""

import importlib.util
import random
from contextlib import suppress

import pytest
import torch

from device_steps import bursts, learned, schedule_of, weights
from interpreted_kernels import device_with_free_memory
from penstock.graph.schema import TASK_FACTS
from penstock.pipeline.schedule import START
from penstock.train.build import make_session
from penstock.train.device.trial import _Operations
from penstock.train.execution.support import CAPTURED, Demands, reasons_against
from penstock.train.execution_modes import choose_execution
from penstock.train.job import make_job
from penstock.train.user_functions import GivenFunctions
from training_graphs import community_graph, typed_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_captured"),
]
FEW = {"fanouts": [3, 2], "batch_size": 16, "epochs": 1, "device": "cpu", "threads": 1}


@pytest.fixture(autouse=True)
def _made_device(monkeypatch):
    device_with_free_memory(monkeypatch, lambda: 1 << 40)


class Sums(torch.nn.Module):
    """Adds up neighbours' rows twice."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x, edge_index):
        for layer in (self.first, self.last):
            rows = self.between(layer(x).relu())
            x = rows.index_add(0, edge_index[1], rows[edge_index[0]])
        return x

    def between(self, rows):
        return rows


class Dropped(Sums):
    def between(self, rows):
        return torch.nn.functional.dropout(rows, 0.3, self.training)


class Centred(Sums):
    """Reads all rows of the batch, those that pad it among them."""

    def between(self, rows):
        return rows - rows.mean(0)


class Counting(Sums):
    calls = 0

    def between(self, rows):
        self.calls += 1
        return rows


class Tossing(Sums):
    def between(self, rows):
        return rows if random.random() < 2 else -rows


class Normalised(Sums):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(4)])

    def between(self, rows):
        return self.norms[0 if rows.shape[1] == 8 else 1](rows)


class Reading(Sums):
    """Reads a number on the host."""

    def between(self, rows):
        return rows if rows.is_meta or float(rows.detach().sum()) < 1e9 else -rows


class Masking(Sums):
    """Makes a tensor whose size the host must know."""

    def between(self, rows):
        return rows + rows[rows[:, 0] > 0].sum(0) * 0


class Failing(Sums):
    """Knows no batch with fixed room."""

    def between(self, rows):
        if len(rows) > 250 and not rows.is_meta:
            raise ValueError("too many rows")
        return rows


def placed_session(module, graph=None, given=None, **fields):
    from penstock.train.device.placement import place

    torch.manual_seed(5)
    session = make_session(
        make_job({**FEW, **fields}), graph or community_graph(120), module(), given=given or GivenFunctions()
    )
    session.optimiser = torch.optim.SGD(session.learned.parameters(), lr=0.01)
    before = weights(session)
    session.execution = choose_execution(session, place(session, True))
    assert all(torch.equal(values, before[name]) for name, values in weights(session).items())
    return session


def assert_same(one, other):
    assert [step.position for step in one[0]] == [step.position for step in other[0]]
    losses = (torch.tensor([step.loss for step in done]) for done, _ in (one, other))
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)
    for name, values in one[1].items():
        torch.testing.assert_close(values, other[1][name], rtol=1e-3, atol=1e-4)


def pyg_sage():
    pyg = pytest.importorskip("torch_geometric.nn")
    return pyg.GraphSAGE(4, 8, 2, 4)


@pytest.mark.parametrize("module", [Sums, pyg_sage])
def test_a_module_is_captured_and_learns_what_it_learns_launched(module):
    session = placed_session(module)
    assert session.execution.placed.is_captured, session.execution.placed.why
    assert session.execution.placed.why[-1] == "Steps are captured once and replayed."
    assert_same(learned(session), learned(placed_session(module, capture=False)))


def test_a_module_that_drops_rows_is_captured_and_goes_on_with_the_same_numbers():
    whole = learned(placed_session(Dropped))
    session = placed_session(Dropped)
    assert session.execution.placed.is_captured, session.execution.placed.why
    first, _ = learned(session, steps=3)
    rest, last = learned(session, start=first[-1].position._replace(batch=first[-1].position.batch + 1))
    assert [step.loss for step in (*first, *rest)] == [step.loss for step in whole[0]]
    assert all(torch.equal(values, last[name]) for name, values in whole[1].items())


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Centred, "differ from those of a launched one"),
        (Counting, "changes its attributes"),
        (Tossing, "random numbers on the host"),
        (Normalised, "changes its buffers"),
        (Reading, "waits for numbers of the device (aten._local_scalar_dense"),
        (Masking, "waits for numbers of the device (aten.index"),
        (Failing, "ValueError: too many rows"),
    ],
)
def test_a_module_that_cannot_be_replayed_is_launched_with_the_reason(module, reason):
    session = placed_session(module)
    placed = session.execution.placed
    assert not placed.is_captured and reason in placed.why[-1] and placed.ahead is not None
    assert_same(learned(session), learned(placed_session(module, capture=False)))


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda x: x + torch.tensor([1.0, 2.0, 3.0]).to(x.device), "copies numbers from the host (aten._to_copy"),
        (lambda x: x[torch.arange(2)], "copies numbers from the host (aten.index"),
        (lambda x: torch.where(x > 0, x, torch.tensor(0.0)), "copies numbers from the host (aten.where"),
        (lambda x: x[:2].copy_(torch.zeros(2, 3)), "copies numbers from the host (aten.copy_"),
        (lambda x: torch.linalg.inv(x @ x.T), "waits for numbers of the device (aten._linalg_check_errors"),
        (lambda x: x.__setitem__(x > 0, 1.0), "waits for numbers of the device (aten.index"),
        (
            lambda x: torch.where(x > 0, x * torch.tensor(2.0), 0.0).index_add(0, torch.zeros_like(x[:, 0]).long(), x),
            None,
        ),
    ],
)
def test_what_no_recording_can_do_is_seen_while_it_is_launched(compute, reason):
    """Tensors without numbers stand for a GPU's, so that the host's are others."""
    operations = _Operations(torch.device("meta"))

    class Computing(torch.nn.Module):
        def forward(self, x):
            return compute(x)

    model = torch.nn.Module()
    model.module = Computing()
    with operations, operations.watching(model), suppress(NotImplementedError, RuntimeError):
        model.module(torch.zeros(4, 3, device="meta"))
    assert operations.waiting is None if reason is None else reason in operations.waiting


def test_a_module_of_several_types_is_launched():
    class Task:
        name, facts, node_type = "node-classification", TASK_FACTS["node-classification"], "paper"

    demands = Demands(make_job(FEW), typed_graph(), Task(), library_model=False)
    assert any("one type and tasks on vertices" in reason for reason in reasons_against(CAPTURED, demands))


def by_row(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


def as_mean(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels)


@pytest.mark.parametrize(("loss", "captured"), [(by_row, True), (as_mean, False)])
def test_a_loss_of_the_users_is_captured_if_it_gives_a_number_for_each_row(loss, captured):
    given = GivenFunctions(loss=loss)
    session = placed_session(Sums, given=given)
    assert session.execution.placed.is_captured == captured
    assert captured or "one number for the batch" in session.execution.placed.why[-1]
    assert_same(learned(session), learned(placed_session(Sums, given=given, capture=False)))


def test_a_switch_that_is_changed_between_bursts_is_seen():
    class Scaled(Sums):
        factor = 1.0

        def between(self, rows):
            return rows * self.factor

    def changed(session):
        schedule, done = schedule_of(session), []
        with session.execution.steps(schedule, START, bursts(schedule, 1), lambda *_: None) as steps:
            for some in steps:
                done += some
                session.model.module.factor = 0.5 if len(done) >= 2 else 1.0
        return done, weights(session)

    session = placed_session(Scaled)
    assert session.execution.placed.is_captured
    assert_same(changed(session), changed(placed_session(Scaled, capture=False)))
