"""Credentials: made, handed over as text, and refused when they are not whole."""

import json

import pytest

from penstock.wire.transport.tls import Credentials, make_credentials
from refusals import refused


def test_travel_as_text() -> None:
    for name, credentials in make_credentials(["store-0", "worker-1"]).items():
        again = Credentials.from_json(credentials.to_json())
        assert again == credentials
        assert again.name == name


def test_every_run_has_others() -> None:
    one, other = make_credentials(["a", "b"]), make_credentials(["a", "b"])
    assert one["a"].authority == one["b"].authority != other["a"].authority
    assert len({*one["a"].peers.values(), *other["a"].peers.values()}) == 4


def test_a_seed_gives_the_same_to_all_who_know_it() -> None:
    one, other, third = (make_credentials(["a", "b"], seed) for seed in (bytes(32), bytes(32), b"\1" + bytes(31)))
    assert one == other
    assert not set(one["a"].peers.values()) & set(third["a"].peers.values())


def test_secrets_are_not_printed() -> None:
    credentials = make_credentials(["a"])["a"]
    assert credentials.secret not in repr(credentials)


@pytest.mark.parametrize("names", [[""], ["a>b"], ["a/b"], ["x" * 65], ["-a"]])
def test_names_that_are_not_valid(names: list[str]) -> None:
    with refused("invalid-value task"):
        make_credentials(names)


def test_a_name_is_given_once() -> None:
    with refused("duplicate 'a'"):
        make_credentials(["a", "a"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"secret": "a" * 64}, "invalid-document"),
        ({"secret": "é" * 64}, "invalid-document"),
        ({"certificate": make_credentials(["a"])["a"].certificate}, "invalid-document certificate"),
        ({"certificate": "none"}, "invalid-document certificate"),
        ({"authority": "none"}, "invalid-document certificate"),
        ({"name": "c"}, "invalid-document"),
        ({"name": 3}, "invalid-document name"),
        ({"peers": {"a": "short"}}, "invalid-document"),
        ({"peers": {"a>b": "short"}}, "invalid-document"),
        ({"more": 1}, "invalid-document more"),
    ],
)
def test_what_is_not_whole_is_refused(change: dict[str, object], said: str) -> None:
    document = json.loads(make_credentials(["a", "b"])["a"].to_json())
    with refused(said):
        Credentials.from_json(json.dumps(document | change))


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_what_is_no_document_is_refused(text: str) -> None:
    with refused("invalid-document"):
        Credentials.from_json(text)


def test_one_key_for_two_is_refused() -> None:
    document = json.loads(make_credentials(["a", "b"])["a"].to_json())
    document["peers"]["b"] = document["peers"]["a"]
    with refused("invalid-document"):
        Credentials.from_json(json.dumps(document))
