"""A member of a run tells the controller what its task refuses."""

import pytest
from wired import template_for, wired

from penstock.errors import PenstockError
from penstock.wire import Message, PeerLost, RemoteError


@pytest.fixture
def refusing():
    """A member of a run, and what its controller has heard it refuse."""
    heard = []

    def failed(message, sender):
        heard.append(message.body["message"])
        return Message("heard")

    post, (member,) = wired(template_for(1), {"failed": failed}, (0,))
    with post:
        yield member, heard


def test_what_a_task_refuses_is_told_once(refusing):
    """What a task refuses is told to the controller; what another's loss caused is not, as it may pass."""
    member, heard = refusing
    with pytest.raises(PenstockError, match="no such"), member:
        member.refuse(PenstockError("no such thing"))
        raise PenstockError("no such thing")
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
    with pytest.raises(PenstockError, match="in use"), member:
        raise PenstockError("the folder is in use")
    assert heard == []
