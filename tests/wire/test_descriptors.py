"""Descriptors that processes of a host hand to each other."""

import os
import socket

import pytest

from penstock.wire.descriptors import DescriptorServer, Offer, fetch_descriptor
from refusals import refused


@pytest.fixture
def server():
    made = DescriptorServer()
    yield made
    made.close()


def memory(content=b""):
    """The descriptor of some memory."""
    number = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(number, content)
    return number


def content(number):
    """What it holds; it is closed."""
    with os.fdopen(number, "rb") as file:
        file.seek(0)
        return file.read()


def test_each_token_has_its_own_memory(server):
    offers = [server.offer(memory(word)) for word in (b"one", b"two")]
    assert [content(fetch_descriptor(each)) for each in offers] == [b"one", b"two"]
    # It can be fetched again, as by a process that was started anew.
    assert content(fetch_descriptor(offers[0])) == b"one"


def test_memory_outlives_who_offered_it(server):
    number = fetch_descriptor(server.offer(memory(b"kept")))
    server.close()
    assert content(number) == b"kept"


def test_a_forked_process_fetches_it(server):
    offer = server.offer(memory(b"seen"))
    child = os.fork()
    if not child:
        os._exit(0 if content(fetch_descriptor(offer)) == b"seen" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_without_the_token(server):
    offer = server.offer(memory(b"secret"))
    with refused("not-available no longer"):
        fetch_descriptor(Offer(offer.address, "0" * len(offer.token)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(f"\0{offer.address}")
        connection.shutdown(socket.SHUT_WR)
        assert socket.recv_fds(connection, 1, 1)[:2] == (b"", [])
    server.withdraw(offer)
    with refused("not-available no longer"):
        fetch_descriptor(offer)


def test_a_server_that_is_gone(server):
    offer = server.offer(memory())
    server.close()
    with refused("not-available cannot be fetched"):
        fetch_descriptor(offer)
