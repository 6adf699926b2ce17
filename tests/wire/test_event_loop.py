"""The thread that owns all sockets: events of connections that another event has just ended."""

import selectors
import socket

from penstock.wire.sockets import EventLoop


def test_a_connection_that_another_ended_in_the_same_round_is_passed_over():
    """Both sockets have something to read; what is called for the first closes the second. The thread must go on."""
    loop, called = EventLoop("test", lambda: None, lambda: None), []
    ends = [socket.socketpair() for _ in range(2)]
    (first, first_far), (second, second_far) = ends

    def end_the_other():
        called.append("first")
        loop.unwatch(second)
        second.close()
        loop.unwatch(second)

    loop.watch(first, end_the_other, None)
    loop.watch(second, lambda: called.append("second"), None)
    keys = [loop._selector.get_key(first), loop._selector.get_key(second)]
    for key in keys:
        loop._happened(key, selectors.EVENT_READ)
    assert called == ["first"]
    loop.unwatch(first)
    for each in (first, first_far, second_far):
        each.close()
    loop._selector.close()
    for end in (loop._near, loop._far):
        end.close()
