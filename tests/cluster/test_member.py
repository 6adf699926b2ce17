"""A member of a run tells the controller what its task refuses, and waits for tasks that have not started yet."""

import threading

import pytest
from wired import template_for, wired

from penstock.errors import PenstockError
from penstock.wire.channel import PeerLost, RemoteError
from penstock.wire.message import Message
from refusals import refused


@pytest.fixture
def refusing():
    """A member of a run, and what its controller has heard it refuse."""
    heard = []

    def failed(message, sender):
        heard.append(message.body["message"])
        return Message("heard")

    endpoint, (member,) = wired(template_for(1), {"failed": failed}, (0,))
    with endpoint:
        yield member, heard


def test_what_a_task_refuses_is_told_once(refusing):
    """What a task refuses is told to the controller; what another's loss caused is not, as it may pass."""
    member, heard = refusing
    with refused("unexpected-failure"), member:
        member.refuse(PenstockError("no such thing", code="unexpected-failure"))
        raise PenstockError("no such thing", code="unexpected-failure")
    assert heard == ["no such thing"]


@pytest.mark.parametrize("error", [PeerLost("silent"), RemoteError("silent", "PeerLost"), ValueError("odd")], ids=repr)
def test_what_may_pass_is_not_told(refusing, error):
    member, heard = refusing
    with pytest.raises(type(error)), member:
        raise error
    assert heard == []


def test_a_task_that_had_been_well_is_tried_again(refusing):
    """As often as tasks may die: a full disk, or a lock that its killed predecessor still has, may pass."""
    member, heard = refusing
    member.setup = member.setup.model_copy(update={"incarnation": 1})
    with refused("in-use"), member:
        raise PenstockError("the folder is in use", code="in-use")
    assert heard == []


def test_tasks_that_start_slowly_are_waited_for():
    """Asked before they are there they would count as lost, and whoever asks would be started again for nothing."""
    endpoint, (member,) = wired(template_for(1), {}, (0,))
    with endpoint:
        waiting = threading.Thread(target=member.await_tasks, args=("store", "sampler"))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        endpoint.meet("worker-0", member.endpoint.address)
        tell = Message("tell", {"addresses": {"store-a": endpoint.address}})
        endpoint.channel("worker-0", "orders").call(tell, 60.0)
        waiting.join(60)
        assert not waiting.is_alive()
        member.await_tasks("store")
        member.stopped.set()
        member._reachable.clear()
        with refused("closed"):
            member.await_tasks("store")
        member.close()


@pytest.mark.parametrize("incarnation", [0, 1])
def test_a_damaged_file_of_a_task(incarnation):
    """A checkpoint replaces it when the run is resumed; in the middle of a run the user hears how to go on."""
    heard = []

    def hear(message, sender):
        heard.append((message.kind, message.body.get("text") or message.body.get("message")))
        return Message("heard")

    endpoint, (member,) = wired(template_for(1, "/runs/one"), {"failed": hear, "progress": hear}, (0,))
    with endpoint:
        member.setup = member.setup.model_copy(update={"incarnation": incarnation})
        if incarnation:
            with refused("damaged-file worker-0"):
                member.drop_damaged(PenstockError("x.state is damaged", code="damaged-file"), "its rows")
            ((kind, said),) = heard
            assert kind == "failed" and "`penstock train --resume /runs/one` resumes from the newest" in said
        else:
            member.drop_damaged(PenstockError("x.state is damaged", code="damaged-file"), "its rows")
            assert heard == [("progress", "x.state is damaged: its rows are taken from the checkpoint instead.")]
        member.close()
