"""What a worker whose memory is full tells the controller, and how it ends."""

from types import SimpleNamespace

import pytest
import torch

from penstock.cluster.tasks import worker
from penstock.pipeline.stages import StageError
from penstock.train.run_context import DeviceFull
from refusals import refused


class Refusing:
    """A member that remembers what it told."""

    def __init__(self, setup):
        self.setup, self.told, self.left = setup, [], False
        setup.members.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def refuse(self, error):
        """The controller ends the run."""
        self.told.append(str(error))

    def leave(self):
        """Goodbye."""
        self.left = True


def too_much_for_torch():
    """What torch says of more than any machine has."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    return caught.value


@pytest.mark.parametrize(
    "error, said",
    [
        (DeviceFull("The device ran out of memory at epoch 2: lower batch_size."), "batch_size"),
        (MemoryError(), "workers"),
        (too_much_for_torch(), "workers"),
    ],
    ids=["device", "numpy", "torch"],
)
@pytest.mark.parametrize("staged", [False, True])
def test_a_full_memory_is_told_with_its_place_and_not_tried_again(monkeypatch, error, said, staged):
    def run(self):
        if staged:
            raise StageError("transfer", 3) from error
        raise error

    monkeypatch.setattr(worker, "Member", Refusing)
    monkeypatch.setattr(worker.Worker, "__init__", lambda self, member, job: None)
    monkeypatch.setattr(worker.Worker, "run", run)
    task, cluster = SimpleNamespace(id="worker-1", machine="m0"), SimpleNamespace(samplers=0)
    setup = SimpleNamespace(task=task, cluster=cluster, job={"device": "cpu", "threads": 1}, members=[])
    with refused(f"out-of-memory worker-1 m0 {said}"):
        worker.run_worker(setup)
    (member,) = setup.members
    assert len(member.told) == 1 and said in member.told[0] and member.left
