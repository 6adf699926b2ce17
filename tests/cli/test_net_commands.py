"""`penstock net`: what is printed, what is done, what is refused."""

import pytest

from boxed_hosts import hosts_or_skip
from in_process import answer, command, refusal

DEVICE = "eth0"
CLUSTER = """
machines:
- {name: near, address: 10.77.0.1, nic_gbps: 0.1}
- {name: far, address: 10.77.0.2}
wire: {dscp: 10}
"""


@pytest.fixture
def file(tmp_path):
    """A cluster file for two hosts."""
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


@pytest.fixture
def on_host():
    """The test is on a host whose interface has a queue that penstock did not make."""
    with hosts_or_skip([100]) as (host,), host.entered():
        yield host


def test_from_someone_elses_queue_to_ours_and_away(on_host, file, monkeypatch, capsys):
    def net(*words):
        return answer(monkeypatch, capsys, "net", *words)

    there = net("show", DEVICE, "--cluster", file)
    assert (there["kind"], there["ours"], there["classes"]) == ("htb", False, [])
    assert [each["name"] for each in there["planned"]] == ["wire", "gradients", "rest"]
    for words in (("apply", DEVICE, "--cluster", file), ("clear", DEVICE)):
        assert "penstock did not make" in refusal(monkeypatch, capsys, "net", *words, "--yes")
    dry = net("apply", DEVICE, "--cluster", file, "--force")
    assert not dry["applied"] and dry["machine"] == "near"
    assert not net("show", DEVICE)["ours"]
    done = net("apply", DEVICE, "--cluster", file, "--force", "--yes")
    assert done == {**dry, "applied": True}
    shown = net("show", DEVICE)
    assert shown["ours"] and [each["number"] for each in shown["classes"]] == ["1", "10", "11", "12"]
    # Again: ours are replaced without being asked.
    assert net("apply", DEVICE, "--cluster", file, "--yes")["commands"][0] == f"tc qdisc delete dev {DEVICE} root"
    assert not net("clear", DEVICE)["cleared"]
    assert net("show", DEVICE)["ours"]
    assert net("clear", DEVICE, "--yes")["cleared"]
    assert (net("show", DEVICE)["handle"], net("clear", DEVICE, "--yes")["cleared"]) == ("0:", False)


def test_classes_of_the_wire_are_strict_also_on_a_router(on_host, file, monkeypatch, capsys):
    file.write_text(CLUSTER.replace("dscp: 10", "dscp_classes: [46, 10]"))

    def planned(*words):
        shown = answer(monkeypatch, capsys, "net", "show", DEVICE, "--cluster", file, *words)["planned"]
        return [(each["name"], each["priority"], each["dscp"], each["addresses"]) for each in shown]

    marked = [("urgent", 1, 46, []), ("ahead", 2, 10, []), ("rest", 7, None, [])]
    assert planned() == [("gradients", 0, None, ["10.77.0.2"]), *marked]
    assert planned("--machine", "near", "--router") == [("gradients", 0, None, ["10.77.0.1"]), *marked]
    assert "--machine" in refusal(monkeypatch, capsys, "net", "show", DEVICE, "--cluster", file, "--router")
    done = answer(monkeypatch, capsys, "net", "apply", DEVICE, "--cluster", file, "--force", "--yes")
    assert done["applied"]
    shown = answer(monkeypatch, capsys, "net", "show", DEVICE)
    assert [each["rate"] for each in shown["classes"]] == ["100Mbit", "1Mbit", "1Mbit", "1Mbit", "5Mbit"]
    assert {each["ceiling"] for each in shown["classes"]} == {"100Mbit"}


def test_text_for_people(on_host, file, monkeypatch, capsys):
    code, out, _ = command(monkeypatch, capsys, "net", "apply", DEVICE, "--cluster", file, "--force")
    assert code == 0
    assert "tc qdisc add dev eth0 root handle 5053: htb" in out
    assert "Nothing was changed: add --yes to do it." in out
    assert "set by someone else" in command(monkeypatch, capsys, "net", "show", DEVICE)[1]


def test_bad_input_is_one_sentence(on_host, file, tmp_path, monkeypatch, capsys):
    def refused(*words):
        return refusal(monkeypatch, capsys, "net", *words)

    groups = tmp_path / "groups.yaml"
    groups.write_text("groups: [{name: a, dscp: 1, share: 0.5}, {name: b, dscp: 1, share: 0.2}]")
    assert "no such network interface" in refused("show", "nothing0")
    assert "'a b'" in refused("show", "a b")
    assert "--cluster" in refused("show", DEVICE, "--machine", "near")
    apply = ("apply", DEVICE, "--force", "--cluster")
    assert "does not exist" in refused(*apply, tmp_path / "none.yaml")
    assert "no machine 'middle'" in refused(*apply, file, "--machine", "middle")
    assert "far has no nic_gbps" in refused(*apply, file, "--machine", "far")
    assert "would look alike" in refused(*apply, file, "--groups", groups)
    file.write_text(CLUSTER.replace("10.77.0.1", "10.77.0.9"))
    assert refused(*apply, file).code == "option-missing"
