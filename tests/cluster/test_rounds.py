"""Rounds of workers that come, go and are lost in any order."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.rendezvous import Barriers, Rounds


@dataclass
class Actor:
    """A worker as it behaves: what it knows of rounds, and how often it was started before."""

    life: int = 0
    step: int = 0
    after: int = 0
    trains: bool = False


@st.composite
def stories(draw):
    """A number of workers, and what happens to them one after the other."""
    world = draw(st.integers(1, 4))
    rank = st.integers(0, world - 1)
    event = st.one_of(
        st.tuples(st.just("ask"), rank, st.integers(0, 3)),
        st.tuples(st.just("lose"), rank, st.integers(0, 9)),
        st.tuples(st.just("late"), rank, st.integers(0, 9)),
        st.tuples(st.just("lose"), st.none(), st.just(0)),
    )
    return world, draw(st.lists(event, max_size=60))


@given(stories())
def test_any_story(story):
    """Who gets a round gets the same as the others; it has no lost worker in it, and its source is the furthest."""
    world, events = story
    rounds, actors = Rounds(world), [Actor() for _ in range(world)]
    asked: dict[int, int] = {}
    formed, members = {}, {}
    for what, rank, number in events:
        if what == "lose":
            assert rounds.lose(rank) == max(formed, default=0)
            if rank is not None:
                actors[rank] = Actor(actors[rank].life + 1, number)
                asked.pop(rank, None)
        elif what == "late":
            # The last words of a process that is gone.
            if actors[rank].life:
                assert rounds.join(rank, 99, 0, actors[rank].life - 1) is None
        else:
            actor = actors[rank]
            actor.step += number if actor.trains else 0
            actor.trains = False
            asked[rank] = actor.step
            found = rounds.join(rank, actor.step, actor.after, actor.life)
            if found is None:
                continue
            if found.generation not in formed:
                assert len(asked) == world and found.generation == max(formed, default=0) + 1
                assert found.step == max(asked.values()) == asked[found.source]
                formed[found.generation] = found
                members[found.generation] = [each.life for each in actors]
                asked = {}
            asked.pop(rank, None)
            assert found == formed[found.generation] and found.generation > actor.after
            assert members[found.generation] == [each.life for each in actors]
            assert rounds.holds(found.generation)
            actor.after, actor.trains = found.generation, True
            actor.step = max(actor.step, found.step)


def test_who_asks_again_ends_the_round():
    rounds = Rounds(2)
    assert rounds.join(0, 4, 0, 0) is None
    first = rounds.join(1, 5, 0, 0)
    assert first is not None and (first.source, first.step) == (1, 5)
    assert rounds.join(0, 4, 0, 0) == first
    assert rounds.join(1, 5, first.generation, 0) is None
    assert not rounds.holds(first.generation)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(1, 3)), max_size=40))
def test_barrier_opens_when_all_of_a_round_are_there(world, arrivals):
    barriers, newest, here = Barriers(world), 0, {}
    for rank, name, generation in arrivals:
        if rank >= world or generation < newest:
            continue
        if generation > newest:
            newest, here = generation, {}
        here.setdefault(name, set()).add(rank)
        assert barriers.arrive(name, rank, generation) == (len(here[name]) == world)
