"""Rows at their owner after any kill: every acknowledged gradient counted, each once."""

import shutil
import signal
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forks import run_forked
from penstock.errors import PenstockError
from penstock.store.embedding import EmbeddingTable
from penstock.store.parts import OwnedEmbedding, Push, PushMissing, StepPast
from penstock.store.parts import owned as staged_gradients
from penstock.store.parts.embedding_files import Journal, _record, read_records
from penstock.wire.message import Message, encode
from refusals import refused

COUNT, WIDTH, WORLD = 12, 3, 2
NAMES = np.random.default_rng(5).permutation(40)[:COUNT]
TABLE = ("t", NAMES, WIDTH)


def owned(folder, optimiser="adam", kind=OwnedEmbedding, seed=1):
    return kind(folder, *TABLE, optimiser, 0.1, seed)


def pushes(step, world=WORLD, seed=0):
    """What every rank learns in a step; some rows by several, in some steps none."""
    made = []
    for rank in range(world):
        rng = np.random.default_rng([seed, step, rank])
        ids = rng.permutation(COUNT)[: rng.integers(0, 6)].astype(np.int32)
        made.append(Push(step, rank, world, True, ids, rng.normal(size=(len(ids), WIDTH)).astype(np.float32)))
    return made


def expected(steps, optimiser="adam", world=WORLD, seed=0):
    """One machine's table after so many steps, gradients summed in the order of ranks."""
    table = EmbeddingTable("t", COUNT, WIDTH, optimiser, 0.1, 1, NAMES)
    for step in range(steps):
        total, touched = np.zeros((COUNT, WIDTH), np.float32), np.zeros(COUNT, bool)
        for push in pushes(step, world, seed):
            np.add.at(total, push.ids, push.gradients)
            touched[push.ids] = True
        ids = np.flatnonzero(touched)
        table.push(ids, total[ids])
    return table


def assert_is(own, table, step):
    assert (own.step, own.steps) == (step, table.steps)
    for mine, theirs in zip([own.rows, *own.moments], [table.rows, *table.moments], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
def test_steps_are_one_machines_whatever_is_repeated_or_out_of_order(tmp_path, optimiser):
    own = owned(tmp_path, optimiser)
    assert_is(own, expected(0, optimiser), 0)
    for step in range(5):
        own.pull(np.arange(COUNT), step, np.empty((COUNT, WIDTH), np.float32))
        wrong = pushes(step, seed=9)[1]
        own.push(wrong)
        for push in [*reversed(pushes(step)), pushes(step)[0]]:
            own.push(push)
        if step:
            own.push(pushes(step - 1, seed=9)[0])  # long on its way, and long applied
    own.reach(5)
    own.reach(5)
    assert_is(own, expected(5, optimiser), 5)
    with refused("step-conflict 5 4", StepPast):
        own.reach(4)
    own.close()
    again = owned(tmp_path, optimiser)
    assert_is(again, expected(5, optimiser), 5)
    again.close()


def test_a_push_for_the_next_step_applies_the_last(tmp_path):
    own = owned(tmp_path)
    for step in range(3):
        for push in pushes(step):
            own.push(push)
    assert_is(own, expected(2), 2)
    own.close()


def test_a_missing_rank_is_named(tmp_path):
    own = owned(tmp_path)
    with refused("step-conflict 0", PushMissing):
        own.reach(1)
    for push in pushes(0, 4)[::2]:
        own.push(push)
    with refused("step-conflict 1 3 4", PushMissing):
        own.reach(1)
    for push in pushes(0, 2):  # done again by fewer
        own.push(push)
    own.reach(1)
    assert_is(own, expected(1), 1)
    own.close()


def test_steps_count_where_the_rows_are_elsewhere_and_not_where_there_are_none(tmp_path):
    own, none = owned(tmp_path), (np.empty(0, np.int32), np.empty((0, WIDTH), np.float32))
    own.push(Push(0, 0, 2, False, *none))
    own.push(Push(0, 1, 2, True, *none))
    own.push(Push(1, 0, 1, False, *none))
    own.reach(2)
    assert (own.step, own.steps) == (2, 1)
    own.close()


class KilledError(Exception):
    """The process is gone."""


class KilledBeforeRecord(OwnedEmbedding):
    def _outcome(self, *args):
        raise KilledError


class KilledBeforeCopy(OwnedEmbedding):
    def _copy(self, ids, tables):
        raise KilledError


class KilledInCopy(OwnedEmbedding):
    def _copy(self, ids, tables):
        half = len(ids) // 2
        super()._copy(
            ids,
            [
                tables[0],
                *(np.concatenate([t[:half], m[ids[half:]]]) for t, m in zip(tables[1:], self.moments, strict=True)),
            ],
        )
        raise KilledError


class KilledBeforeSettling(OwnedEmbedding):
    def _settle(self, step, steps, undo):
        raise KilledError


class KilledAfterSettling(OwnedEmbedding):
    def _settle(self, step, steps, undo):
        super()._settle(step, steps, undo)
        raise KilledError


@pytest.mark.parametrize(
    "kind", [KilledBeforeRecord, KilledBeforeCopy, KilledInCopy, KilledBeforeSettling, KilledAfterSettling]
)
def test_a_kill_while_applying_changes_nothing(tmp_path, kind):
    own = owned(tmp_path)
    for step in range(2):
        for push in pushes(step):
            own.push(push)
    own.close()
    for step in range(2, 5):
        dying = owned(tmp_path, kind=kind)
        with pytest.raises(KilledError):
            dying.reach(step)
        dying.close()
        own = owned(tmp_path)
        own.reach(step)
        assert_is(own, expected(step), step)
        for push in pushes(step):
            own.push(push)
        own.close()


def test_a_process_that_kills_itself_in_the_middle_leaves_its_tables(tmp_path):
    script = f"""
import os, signal, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
import test_owned_embedding as test

class Dying(test.OwnedEmbedding):
    def _copy(self, ids, tables):
        self._tables[0][ids[: len(ids) // 2]] = tables[0][: len(ids) // 2]
        if self.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._copy(ids, tables)

own = test.owned(test.Path({str(tmp_path)!r}), kind=Dying)
for step in range(2):
    for push in test.pushes(step):
        own.push(push)
own.reach(2)
"""
    assert run_forked(["python", script]).returncode == -signal.SIGKILL
    own = owned(tmp_path)
    assert_is(own, expected(2), 2)
    own.close()


def test_a_journal_cut_anywhere_loses_nothing_that_was_acknowledged(tmp_path):
    first = tmp_path / "first"
    own = owned(first)
    for push in [*pushes(0), pushes(1)[0]]:
        own.push(push)
    own.push(pushes(1)[1])
    own.close()
    dying = owned(first, kind=KilledBeforeCopy)
    with pytest.raises(KilledError):
        dying.reach(2)
    dying.close()
    content, sizes = (first / "journal").read_bytes(), [0, *_record_ends(first / "journal")]
    assert len(content) == sizes[-1]
    cut = tmp_path / "cut"
    for size in range(len(content) + 1):
        cut.write_bytes(content[:size])
        assert read_records(cut)[1] == max(end for end in sizes if end <= size)
    # Nothing; the clock, the way back from the step before, two pushes, the way back from this one, the outcome.
    assert len(sizes) == 7
    for size in {*(end + off for end in sizes[1:] for off in (-1, 0, 1)), *range(sizes[1], len(content), 31)}:
        if sizes[1] <= size <= len(content):
            _reopen_cut(first, tmp_path / "copy", content[:size], sum(size >= end for end in sizes[2:]))


def _reopen_cut(first, copy, content, whole):
    """With `whole` records behind the clock: what was pushed is there, and done again it is counted once."""
    shutil.copytree(first, copy)
    (copy / "journal").write_bytes(content)
    own = owned(copy)
    assert own.step == (2 if whole == 5 else 1)
    if whole < 5:
        assert sorted(own._staged.pushes) == list(range(min(2, max(0, whole - 1))))
        own.push(pushes(1)[1])
        own.push(pushes(1)[0])
    own.reach(2)
    assert_is(own, expected(2), 2)
    own.close()
    shutil.rmtree(copy)


def _record_ends(path):
    content, ends = path.read_bytes(), []
    for _ in read_records(path)[0]:
        begin = ends[-1] if ends else 0
        _, size = _record(memoryview(content)[begin:])
        ends.append(begin + size)
    return ends


def test_a_full_disk_is_reported_and_the_journal_stays_whole(tmp_path, monkeypatch):
    import penstock.store.parts.embedding_files as journal

    own = owned(tmp_path)
    own.push(pushes(0)[0])
    write = journal._write

    def full(file, at, record):
        import os

        os.pwrite(file, b"psj1 half a record", at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "_write", full)
    with refused("write-failed"):
        own.push(pushes(0)[1])
    monkeypatch.setattr(journal, "_write", write)
    own.push(pushes(0)[1])
    # The tables are written, and the disk is full when the journal should begin anew: the step is applied all the same.
    with monkeypatch.context() as patch:
        replace = Journal.replace
        patch.setattr(
            Journal, "replace", lambda *_: (_ for _ in ()).throw(PenstockError("No space left", code="write-failed"))
        )
        with refused("write-failed"):
            own.reach(1)
    assert Journal.replace is replace
    assert_is(own, expected(1), 1)
    own.push(pushes(1)[0])
    own.close()
    for _ in range(2):
        own = owned(tmp_path)
        assert_is(own, expected(1), 1)
        assert sorted(own._staged.pushes) == [0]
        own.close()


def test_restoring_is_whole_or_refuses(tmp_path):
    source, target = owned(tmp_path / "a"), owned(tmp_path / "b")
    for step in range(3):
        for push in pushes(step):
            source.push(push)
    source.reach(3)
    pieces = [(start, source.read(start, min(COUNT, start + 5), 3)) for start in range(0, COUNT, 5)]
    target.push(pushes(0, seed=7)[0])
    assert not target.restore("r", *pieces[2], 3, 3)
    with refused("step-conflict"):
        target.reach(0)
    assert not target.restore("r", *pieces[0], 3, 3)
    target.close()
    target = owned(tmp_path / "b")
    with refused("step-conflict"):
        target.push(pushes(3)[0])
    assert not target.restore("r", *pieces[0], 3, 3)
    assert target.restore("r", *pieces[1], 3, 3)
    assert_is(target, expected(3), 3)
    for push in pushes(3):
        target.push(push)
    assert target.restore("r", *pieces[1], 3, 3)  # come late: no harm
    target.reach(4)
    assert_is(target, expected(4), 4)
    target.restore("s", *pieces[0], 3, 3)
    target.restore("t", *pieces[0], 3, 3)
    with refused("step-conflict"):
        target.restore("s", *pieces[1], 3, 3)
    with refused("mismatched-inputs"):
        target.restore("t", 8, pieces[0][1], 3, 3)
    source.close()
    target.close()


def test_a_restoring_that_meets_a_full_disk_has_changed_nothing(tmp_path, monkeypatch):
    own, other = owned(tmp_path / "a"), owned(tmp_path / "b")
    piece = [table.copy() for table in (other.rows, *other.moments)]
    for push in pushes(0):
        own.push(push)

    def full(*_):
        raise PenstockError("No space left", code="write-failed")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "replace", full)
        with refused("write-failed"):
            own.restore("r", 0, [each[:4] for each in piece], 7, 3)
    own.reach(1)
    assert_is(own, expected(1), 1)
    assert not own.restore("r", 0, [each[:4] for each in piece], 7, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "replace", full)
        with refused("write-failed"):
            own.restore("r", 4, [each[4:] for each in piece], 7, 3)
    with refused("step-conflict"):
        own.reach(7)
    assert own.restore("r", 4, [each[4:] for each in piece], 7, 3)
    np.testing.assert_array_equal(own.pull(np.arange(COUNT), 7, np.empty((COUNT, WIDTH), np.float32)), other.rows)
    own.close()
    other.close()


def test_what_does_not_fit_is_refused(tmp_path):
    own = owned(tmp_path)
    good = pushes(0)[0]
    for bad, words in [
        (good._replace(ids=np.array([COUNT]), gradients=np.zeros((1, WIDTH), np.float32)), "id-out-of-range 0..11"),
        (good._replace(gradients=good.gradients[:, :2]), "shape-mismatch"),
        (good._replace(gradients=good.gradients.astype(np.float64)), "shape-mismatch"),
        (good._replace(rank=2), "malformed-message 2"),
        (good._replace(learned=False), "malformed-message"),
    ]:
        with refused(words):
            own.push(bad)
    with refused("in-use"):
        owned(tmp_path)
    own.close()
    with refused("mismatched-inputs"):
        owned(tmp_path, seed=2)
    (tmp_path / "journal").write_bytes(b"psj1")
    with refused("damaged-file"):
        owned(tmp_path)


def test_a_start_that_was_killed_begins_again(tmp_path):
    own = owned(tmp_path)
    own.rows[...] = 5
    own.moments[0][...] = 5
    own.close()
    (tmp_path / "journal").unlink()
    own = owned(tmp_path)
    assert_is(own, expected(0), 0)
    own.close()


@given(
    st.lists(st.tuples(st.text(max_size=5), st.integers(0, 2**62), st.integers(0, 9)), max_size=5),
    st.binary(max_size=60),
)
def test_journals_give_back_whole_records_and_drop_the_rest(tmp_path_factory, records, tail):
    import penstock.store.parts.embedding_files as journal

    path = tmp_path_factory.mktemp("journal") / "journal"
    journal.write_journal(path, [])
    with Journal(path) as file:
        for word, number, count in records:
            file.append(Message("record", {"word": word, "number": number}, (np.arange(count), np.zeros((count, 2)))))
    with path.open("ab") as file:
        file.write(tail)
    with Journal(path) as file:
        assert [(r.body["word"], r.body["number"], len(r.arrays[1])) for r in file.records] == records
        assert path.stat().st_size == file.size


def test_a_run_that_was_begun_before_there_were_coflows_goes_on(tmp_path, monkeypatch):
    """Its journal has headers of that time; what is appended has today's."""

    def encoded_then(*said, **limits):
        header, *frames = encode(*said, **limits)
        version, sign, call, number, flow, priority, _, *rest = msgpack.unpackb(header)
        assert version == 2
        return [msgpack.packb([1, sign, call, number, flow, priority, *rest]), *frames]

    with monkeypatch.context() as then:
        then.setattr("penstock.store.parts.embedding_files.encode", encoded_then)
        own = owned(tmp_path)
        for step in range(2):
            for push in pushes(step):
                own.push(push)
            own.reach(step + 1)
        own.push(pushes(2)[0])
        own.close()
    own = owned(tmp_path)
    assert_is(own, expected(2), 2)
    own.push(pushes(2)[1])
    own.close()
    own = owned(tmp_path)
    own.reach(3)
    assert_is(own, expected(3), 3)
    own.close()


def test_a_step_that_nobody_left_agreed_on_is_taken_back_and_done_again(tmp_path):
    own = owned(tmp_path / "own")
    for step in range(3):
        for push in pushes(step):
            own.push(push)
        own.reach(step + 1)
    assert_is(own, expected(3), 3)
    own.begin_round(2, number=4)
    assert_is(own, expected(2), 2)
    # The same round again, or an older one, is no news.
    own.begin_round(1, number=4)
    own.begin_round(1, number=3)
    assert_is(own, expected(2), 2)
    for push in pushes(2):
        own.push(push)
    own.begin_round(2, number=5)
    own.reach(3)
    assert_is(own, expected(3), 3)
    with refused("step-conflict", StepPast):
        own.begin_round(1, number=6)
    own.close()


def test_a_step_is_taken_back_after_a_kill_too(tmp_path):
    """Whatever of the last step is in the journal: the one before can be stood at."""
    own = owned(tmp_path / "own")
    for push in pushes(0):
        own.push(push)
    own.reach(1)
    for push in pushes(1):
        own.push(push)
    own.close()
    shutil.copytree(tmp_path / "own", tmp_path / "before")
    own = owned(tmp_path / "own")
    records = []
    own._journal.append = lambda record, append=own._journal.append: (records.append(record), append(record))[1]
    own.reach(2)
    own.close()
    assert [record.kind for record in records] == ["undo", "applied"]
    for written in range(3):
        folder = tmp_path / f"killed-{written}"
        shutil.copytree(tmp_path / "before", folder)
        with Journal(folder / "journal") as journal:
            for record in records[:written]:
                journal.append(record)
        killed = owned(folder)
        assert_is(killed, expected(2 if written == 2 else 1), 2 if written == 2 else 1)
        killed.begin_round(1, number=1)
        assert_is(killed, expected(1), 1)
        for push in pushes(1):
            killed.push(push)
        killed.reach(2)
        assert_is(killed, expected(2), 2)
        killed.close()


def clipped(step, world=WORLD, seed=0):
    """The same pushes, which wait for a factor."""
    return [push._replace(clipped=True) for push in pushes(step, world, seed)]


def shrunk(steps, factors, optimiser="adam"):
    """One machine's table after steps with gradients multiplied, and the sum of squares of each step's gradients."""
    table, squares = EmbeddingTable("t", COUNT, WIDTH, optimiser, 0.1, 1, NAMES), []
    for step in range(steps):
        total, touched = np.zeros((COUNT, WIDTH), np.float32), np.zeros(COUNT, bool)
        for push in pushes(step):
            np.add.at(total, push.ids, push.gradients)
            touched[push.ids] = True
        ids = np.flatnonzero(touched)
        squares.append(np.square(total, dtype=np.float64).sum())
        table.push(ids, total[ids] * np.float32(factors[step]))
    return table, squares


@pytest.mark.parametrize("kind", [OwnedEmbedding, KilledBeforeRecord, KilledBeforeCopy, KilledBeforeSettling])
def test_a_clipped_step_is_applied_with_its_factor_after_any_kill(tmp_path, kind):
    """Squares are told while gradients are staged and after they were applied: some ranks go on before others ask."""
    factors = [0.5, 1.0, 0.25]
    table, squares = shrunk(3, factors)
    for step, factor in enumerate(factors):
        own = owned(tmp_path)
        for push in clipped(step):
            own.push(push)
        assert own.squares(step) == pytest.approx(squares[step])
        own.shrink(step, factor)
        own.push(clipped(step)[0])  # a call that was heard twice takes nothing back
        own.close()
        if kind is not OwnedEmbedding:
            dying = owned(tmp_path, kind=kind)
            with pytest.raises(KilledError):
                dying.reach(step + 1)
            dying.close()
        own = owned(tmp_path)
        own.reach(step + 1)
        own.shrink(step, 0.0)  # long past
        assert own.squares(step) == pytest.approx(squares[step])
        own.close()
        own = owned(tmp_path)
        assert own.squares(step) == pytest.approx(squares[step])
        own.close()
    own = owned(tmp_path)
    assert_is(own, table, 3)
    own.close()


def test_a_clipped_step_is_not_applied_without_a_factor(tmp_path):
    own = owned(tmp_path)
    own.push(clipped(0)[0])
    with refused("step-conflict 1 2", PushMissing):
        own.squares(0)
    own.push(clipped(0)[1])
    with refused("step-conflict", PushMissing):
        own.reach(1)
    own.shrink(0, 0.5)
    own.reach(1)
    for push in clipped(1):
        own.push(push)
    # The factor was the last step's.
    with refused("step-conflict", PushMissing):
        own.reach(2)
    own.shrink(1, 0.5)
    own.reach(2)
    own.begin_round(1, number=1)
    for push in clipped(1):
        own.push(push)
    own.shrink(1, 0.5)
    own.reach(2)
    assert_is(own, shrunk(2, [0.5, 0.5])[0], 2)
    own.close()


def test_a_step_taken_back_has_no_squares_after_a_kill(tmp_path):
    """Whoever asks for those of the step before it hears that they are past, and not a sum of nothing."""
    own = owned(tmp_path)
    for step in range(2):
        for push in clipped(step):
            own.push(push)
        own.shrink(step, 0.5)
        own.reach(step + 1)
    dying = type("Dying", (KilledBeforeSettling,), {})
    own.close()
    own = owned(tmp_path, kind=dying)
    with pytest.raises(KilledError):
        own.begin_round(1, number=1)
    own.close()
    own = owned(tmp_path)
    assert own.step == 1
    with pytest.raises(StepPast):
        own.squares(0)
    own.close()


def test_a_factor_survives_two_kills(tmp_path, monkeypatch):
    """The disk was full when a step was settled: the next one's gradients and factor stand behind its outcome."""
    table, _ = shrunk(2, [0.5, 0.25])
    own = owned(tmp_path)
    for push in clipped(0):
        own.push(push)
    own.shrink(0, 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(
            Journal, "replace", lambda *_: (_ for _ in ()).throw(PenstockError("No space left", code="write-failed"))
        )
        with refused("write-failed"):
            own.reach(1)
    for push in clipped(1):
        own.push(push)
    own.shrink(1, 0.25)
    for _ in range(2):
        own.close()
        own = owned(tmp_path)
    own.reach(2)
    assert_is(own, table, 2)
    own.close()


def test_gradients_are_summed_once_a_step_however_many_ask(tmp_path, monkeypatch):
    own, sums = owned(tmp_path), []
    summed = staged_gradients._summed
    monkeypatch.setattr(staged_gradients, "_summed", lambda pushes: sums.append(len(pushes)) or summed(pushes))
    table, squares = shrunk(2, [0.5, 0.5])
    for step in range(2):
        for push in clipped(step, seed=4):
            own.push(push)
        own.squares(step)
        for push in clipped(step):  # done again: what was summed counts no more
            own.push(push)
        assert [own.squares(step) for _ in range(3)] == pytest.approx([squares[step]] * 3)
        own.shrink(step, 0.5)
        own.reach(step + 1)
    assert len(sums) == 4
    assert_is(own, table, 2)
    own.close()


@pytest.mark.parametrize("optimiser, decay", [("adam", 0.2), ("adagrad", 0.2), ("dense-adam", 0.0)])
def test_rows_that_move_in_every_step_are_one_machines_after_kills_and_a_step_done_again(tmp_path, optimiser, decay):
    """The owner is opened anew before every step; a step is taken back; a state goes to another owner."""
    everything, out = np.arange(COUNT), np.empty((COUNT, WIDTH), np.float32)
    table = EmbeddingTable("t", COUNT, WIDTH, optimiser, 0.1, 1, NAMES, decay=decay)
    for step in range(6):
        own = OwnedEmbedding(tmp_path / "a", *TABLE, optimiser, 0.1, 1, decay)
        np.testing.assert_array_equal(own.pull(everything, step, out), table.pull(everything))
        for push in pushes(step):
            own.push(push)
        if step == 3:
            own.reach(4)
            own.begin_round(3, 1)
            np.testing.assert_array_equal(own.pull(everything, 3, out), table.pull(everything))
            for push in pushes(step):
                own.push(push)
        own.close()
        total, touched = np.zeros((COUNT, WIDTH), np.float32), np.zeros(COUNT, bool)
        for push in pushes(step):
            np.add.at(total, push.ids, push.gradients)
            touched[push.ids] = True
        table.push(np.flatnonzero(touched), total[touched])
    own = OwnedEmbedding(tmp_path / "a", *TABLE, optimiser, 0.1, 1, decay)
    state, kept = own.read(0, COUNT, 6), table.state()
    for mine, theirs in zip(state, [table.rows, *table.moments], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    other = OwnedEmbedding(tmp_path / "b", *TABLE, optimiser, 0.1, 1, decay)
    assert other.restore("once", 0, state, 6, kept["steps"])
    np.testing.assert_array_equal(other.pull(everything, 6, out), table.pull(everything))
    other.close()
    own.close()
    with refused("mismatched-inputs"):
        OwnedEmbedding(tmp_path / "a", *TABLE, "adagrad" if optimiser == "adagrad" else "adam", 0.1, 1, 0.0)
