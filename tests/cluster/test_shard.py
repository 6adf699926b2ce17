"""A parameter server's weights: cut and joined, stepped like a whole model, and the same after any kill."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.server import Shard, check_served, cut_state, join_state, shape_of, shard_pieces
from penstock.train.job import make_job
from penstock.train.optimisers import make_optimiser
from refusals import refused
from training_graphs import assert_same_state

OPTIMISERS = [
    {"optimiser": "Adam"},
    {"optimiser": "AdamW", "weight_decay": 0.1, "optimiser_options": {"amsgrad": True}},
    {"optimiser": "SGD"},
    {"optimiser": "SGD", "optimiser_options": {"momentum": 0.9}},
    {"optimiser": "Adagrad"},
    {"optimiser": "RMSprop", "optimiser_options": {"centered": True}},
    {"optimiser": "NAdam"},
]
SHAPES = [(5, 3), (7,), (), (1, 4)]


def job_of(**fields):
    """A job with an optimiser."""
    return make_job({"graph": "g", "fanouts": [2], "lr": 0.05, **fields})


def gradients(step, missing=()):
    """Of all parameters, the same every time; None for some."""
    generator = torch.Generator().manual_seed(step)
    drawn = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [None if number in missing else each for number, each in enumerate(drawn)]


def model():
    """Parameters of several shapes, a single number among them."""
    generator = torch.Generator().manual_seed(99)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def stepped(parameters, optimiser, step, missing=()):
    """One step on one machine."""
    for parameter, gradient in zip(parameters, gradients(step, missing), strict=True):
        parameter.grad = gradient
    optimiser.step()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 5))
def test_pieces_cover_every_weight_once(sizes, servers):
    shards = shard_pieces(sizes, servers)
    weights = [(piece.parameter, i) for pieces in shards for piece in pieces for i in range(piece.first, piece.last)]
    assert weights == [(number, i) for number, size in enumerate(sizes) for i in range(size)]
    lengths = [sum(piece.last - piece.first for piece in pieces) for pieces in shards]
    assert len(lengths) == servers and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("fields", OPTIMISERS)
@pytest.mark.parametrize("servers", [1, 3])
def test_state_survives_cutting_and_joining(fields, servers):
    """Also where a parameter has made fewer steps than the others."""
    parameters = model()
    optimiser = make_optimiser(parameters, job_of(**fields))
    pieces = shard_pieces([p.numel() for p in parameters], servers)
    flat = [piece for each in pieces for piece in each]
    for missing in ((1,), (0,), ()):
        stepped(parameters, optimiser, 1, missing)
        states = [state for each in pieces for state in cut_state(optimiser, parameters, each)]
        joined = join_state(flat, states, parameters)
        for parameter, state in zip(parameters, joined, strict=True):
            known = {k: torch.as_tensor(v) for k, v in optimiser.state.get(parameter, {}).items() if v is not None}
            assert_same_state(state, known)


class Servers:
    """Shards as workers use them; a shard can be killed, and is then opened from its file."""

    def __init__(self, job, folder, servers, world):
        self.job, self.folder, self.world = job, folder, world
        self.parameters = model()
        self.pieces = shard_pieces([p.numel() for p in self.parameters], servers)
        self.shards = [self.opened(number) for number in range(servers)]

    def opened(self, number):
        """From its file, if there is one."""
        return Shard(self.job, self.world, self.folder / f"{number}.state")

    def begin(self, step, parameters, optimiser, again=False):
        """Weights and states to every shard."""
        for shard, pieces in zip(self.shards, self.pieces, strict=True):
            shapes = [shape_of(piece, parameters[piece.parameter]) for piece in pieces]
            states = cut_state(optimiser, parameters, pieces)
            shard.begin(step, shapes, self.row(parameters, pieces), states, again)

    def row(self, values, pieces):
        """A row of the pieces' numbers; zeros for what is missing."""
        found = [torch.zeros(0)]
        for piece in pieces:
            value = values[piece.parameter]
            size = piece.last - piece.first
            found.append(torch.zeros(size) if value is None else value.detach().reshape(-1)[piece.first : piece.last])
        return torch.cat(found)

    def give(self, number, rank, step, missing=()):
        """A worker's share of a step's gradients: each has an equal one, and as many as there are make the whole."""
        pieces, whole = self.pieces[number], gradients(step, missing)
        row = self.row([None if each is None else each / self.world for each in whole], pieces)
        present = torch.tensor([float(whole[piece.parameter] is not None) for piece in pieces])
        numbers = torch.cat([row, present, torch.tensor([1.5])])
        self.shards[number].give(step, rank, 0.05, numbers, 1)

    def weights(self, step):
        """All weights after a step, one behind the other, and what else was summed."""
        found = [shard.after(step, 0.0) for shard in self.shards]
        assert all(each is not None for each in found)
        assert all(each[1].tolist() == [1.5 * self.world] for each in found)
        return torch.cat([each[0] for each in found])


@pytest.mark.parametrize("fields", OPTIMISERS)
@pytest.mark.parametrize("servers", [1, 4])
def test_servers_step_like_one_machine(tmp_path, fields, servers):
    """Parameters without a gradient stay as they are, with their number of steps."""
    job = job_of(**fields)
    mine, theirs = Servers(job, tmp_path, servers, 2), model()
    optimiser = make_optimiser(theirs, job)
    mine.begin(0, mine.parameters, make_optimiser(mine.parameters, job))
    for step, missing in enumerate([(2,), (), (0, 2), (1,), ()]):
        stepped(theirs, optimiser, step, missing)
        for number in range(servers):
            for rank in (1, 0):
                mine.give(number, rank, step, missing)
        whole = torch.cat([p.detach().reshape(-1) for p in theirs])
        torch.testing.assert_close(mine.weights(step), whole, rtol=1e-6, atol=1e-7)


@settings(max_examples=12)
@given(st.data())
def test_nothing_that_happens_to_a_server_changes_its_weights(tmp_path_factory, data):
    """Gradients come twice, late and in any order, and servers are killed between any two of them."""
    fields = data.draw(st.sampled_from(OPTIMISERS))
    job, world, servers, steps = job_of(**fields), data.draw(st.integers(1, 2)), 2, 2
    calm, stormy = (Servers(job, tmp_path_factory.mktemp("servers"), servers, world) for _ in range(2))
    for each in (calm, stormy):
        each.begin(0, each.parameters, make_optimiser(each.parameters, job))
    for step in range(steps):
        for number in range(servers):
            for rank in range(world):
                calm.give(number, rank, step)
        todo = {(number, rank) for number in range(servers) for rank in range(world)}
        while todo:
            what = data.draw(st.sampled_from(["give", "again", "late", "kill"]))
            # The first of each choice leads to the end: an example of all firsts must not go on for ever.
            number, rank = data.draw(st.sampled_from(sorted(todo)))
            if what == "kill":
                stormy.shards[number] = stormy.opened(number)
                if stormy.shards[number].after(step, 0.0) is None:
                    # It has forgotten what was given for the step under way: workers that meet again give it again.
                    todo |= {(number, rank) for rank in range(world)}
            elif what == "late" and step > 0:
                stormy.give(number, data.draw(st.integers(0, world - 1)), step - 1)
            else:
                if what == "again":
                    number, rank = (data.draw(st.integers(0, most - 1)) for most in (servers, world))
                stormy.give(number, rank, step)
                todo.discard((number, rank))
            if stormy.shards[number].after(step, 0.0) is not None:
                todo -= {(number, rank) for rank in range(world)}
        assert torch.equal(stormy.weights(step), calm.weights(step))
    for ours, theirs in zip(stormy.shards, calm.shards, strict=True):
        assert_same_state(ours.states(), theirs.states())


def test_begins_once_unless_told_again(tmp_path):
    job = job_of()
    servers = Servers(job, tmp_path, 1, 1)
    optimiser = make_optimiser(servers.parameters, job)
    servers.begin(0, servers.parameters, optimiser)
    servers.give(0, 0, 0)
    after = servers.weights(0)
    servers.begin(0, servers.parameters, optimiser)
    assert torch.equal(servers.weights(0), after)
    servers.begin(0, servers.parameters, optimiser, again=True)
    assert servers.shards[0].after(0, 0.0) is None
    servers.give(0, 0, 0)
    assert torch.equal(servers.weights(0), after)


def test_what_does_not_fit_is_refused(tmp_path):
    servers = Servers(job_of(), tmp_path, 1, 2)
    with refused("not-available"):
        servers.give(0, 0, 0)
    servers.begin(0, servers.parameters, make_optimiser(servers.parameters, servers.job))
    with refused("step-conflict"):
        servers.give(0, 0, 3)
    with refused("malformed-message"):
        servers.shards[0].give(0, 0, 0.05, torch.zeros(3), 1)


def test_jobs_that_need_all_weights_are_refused():
    for fields in OPTIMISERS:
        check_served(job_of(**fields))
    with refused("unsupported-combination"):
        check_served(job_of(optimiser="Adafactor"))


def clipped_step(servers, step, order, clip):
    """One step in which each of two workers, in some order, asks all for squares and tells them the factor."""
    for number in range(len(servers.shards)):
        assert servers.shards[number].squares(step, 0.0) is None
        assert not servers.shards[number].shrink(step, 0.5)
        for rank in order:
            servers.give(number, rank, step)
    for _ in order:
        squares = sum(shard.squares(step, 0.0) for shard in servers.shards)
        factor = min(1.0, clip / (squares**0.5 + 1e-6))
        for shard in servers.shards:
            assert shard.shrink(step, factor)


@pytest.mark.parametrize("clip", [0.7, 100.0])
def test_servers_clip_by_the_norm_of_all_gradients(tmp_path, clip):
    job = job_of(clip=clip, optimiser="SGD")
    mine, theirs = Servers(job, tmp_path, 3, 2), model()
    optimiser = make_optimiser(theirs, job)
    mine.begin(0, mine.parameters, make_optimiser(mine.parameters, job))
    for step in range(3):
        for parameter, gradient in zip(theirs, gradients(step), strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(theirs, clip)
        optimiser.step()
        clipped_step(mine, step, (1, 0), clip)
        whole = torch.cat([p.detach().reshape(-1) for p in theirs])
        torch.testing.assert_close(mine.weights(step), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_server_killed_between_squares_and_step_changes_nothing(tmp_path, killed):
    """Its gradients come again, and squares of servers that have made the step are the same as before."""
    job = job_of(clip=0.7)
    calm, stormy = Servers(job, tmp_path / "calm", 2, 2), Servers(job, tmp_path / "stormy", 2, 2)
    for each in (calm, stormy):
        each.folder.mkdir()
        each.begin(0, each.parameters, make_optimiser(each.parameters, job))
        for step in range(2):
            clipped_step(each, step, (0, 1), 0.7)
    for number in range(2):
        for rank in range(2):
            stormy.give(number, rank, 2)
    squares = [shard.squares(2, 0.0) for shard in stormy.shards]
    factor = 0.7 / (sum(squares) ** 0.5 + 1e-6)
    assert stormy.shards[1 - killed].shrink(2, factor)
    stormy.shards = [stormy.opened(number) for number in range(2)]
    assert not stormy.shards[killed].shrink(2, factor)
    for number in range(2):
        for rank in range(2):
            stormy.give(number, rank, 2)
    assert [shard.squares(2, 0.0) for shard in stormy.shards] == squares
    assert all(shard.shrink(2, factor) for shard in stormy.shards)
    clipped_step(calm, 2, (1, 0), 0.7)
    assert torch.equal(stormy.weights(2), calm.weights(2))
