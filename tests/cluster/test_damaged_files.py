"""Files of parameter servers and of embeddings' owners that were damaged: a checkpoint replaces them, or a sentence."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penstock.cluster.tasks.server import _opened
from penstock.errors import PenstockError
from penstock.store.parts import owned as owned_module
from penstock.store.parts.service import own_embedding
from penstock.train.run_files.checkpoints import write_state
from refusals import refused

JOB = {"graph": "g", "fanouts": [2]}


class Told:
    """A member, as far as damage concerns it."""

    def __init__(self, refuses=False):
        layout = SimpleNamespace(world=1)
        self.setup, self.said, self._refuses = SimpleNamespace(job=JOB, layout=layout), [], refuses

    def drop_damaged(self, error, what):
        self.said.append(f"{error}: {what}")
        if self._refuses:
            raise PenstockError("resume the run", code="unexpected-failure")


def begun(file):
    shard = _opened(Told(), file)
    shard.begin(4, [[3]], torch.arange(3.0), [{}], False)
    return shard


@pytest.mark.parametrize("change", ["cut off", "another"])
def test_a_servers_state(change, tmp_path):
    file = tmp_path / "server-0.state"
    begun(file)
    assert _opened(Told(), file).after(3, 0)[0].tolist() == [0.0, 1.0, 2.0]
    if change == "cut off":
        file.write_bytes(file.read_bytes()[:-20])
    else:
        write_state(file, {"step": 3})
    with refused("unexpected-failure"):
        _opened(Told(refuses=True), file)
    member = Told()
    shard = _opened(member, file)
    (said,) = member.said
    assert "server-0.state is damaged" in said and "remove it" not in said
    with refused("not-available"):
        shard.states()
    # What the first worker hands over counts.
    begun(file)


def partition(count=6):
    """As much of a partition as an owner looks at."""
    book = SimpleNamespace(range=lambda part, table: (0, count))
    return SimpleNamespace(original=lambda table: np.arange(count), book=book)


def table(folder, damaged=None):
    return own_embedding(folder, partition(), 0, "author", 3, "adam", 0.1, 1, damaged=damaged)


def cut_off(folder):
    journal = folder / "author" / "part0" / owned_module.JOURNAL
    journal.write_bytes(journal.read_bytes()[:10])


def shorten(folder):
    rows = folder / "author" / "part0" / "moment1.f32"
    rows.write_bytes(rows.read_bytes()[:8])


def remove(folder):
    (folder / "author" / "part0" / "rows.f32").unlink()


@pytest.mark.parametrize("change", [cut_off, shorten, remove])
def test_the_files_of_an_embedding(change, tmp_path):
    first = table(tmp_path)
    rows = first.rows.copy()
    first.rows[:] = 7.0
    first.close()
    change(tmp_path)
    with refused("damaged-file"):
        table(tmp_path)

    def refuse(error):
        raise PenstockError("resume the run", code="unexpected-failure")

    with refused("unexpected-failure"):
        table(tmp_path, refuse)
    said = []
    again = table(tmp_path, said.append)
    assert len(said) == 1
    # As at the beginning; the checkpoint's rows come next.
    np.testing.assert_array_equal(again.rows, rows)
    assert again.restore("t", 0, [np.full((6, 3), 2, np.float32)] * 3, 5, 4)
    assert again.step == 5 and (again.rows == 2).all()
    again.close()


def test_an_embedding_is_not_written_through_links(tmp_path):
    table(tmp_path).close()
    victim = tmp_path / "victim"
    for name in ("lock", "journal", "rows.f32"):
        own = tmp_path / "author" / "part0" / name
        own.rename(victim)
        own.symlink_to(victim)
        before = victim.read_bytes()
        with refused("write-failed"):
            table(tmp_path)
        assert victim.read_bytes() == before
        own.unlink()
        victim.rename(own)
    (tmp_path / "author").rename(tmp_path / "elsewhere")
    (tmp_path / "author").symlink_to(tmp_path / "elsewhere")
    with refused("write-failed"):
        table(tmp_path)
