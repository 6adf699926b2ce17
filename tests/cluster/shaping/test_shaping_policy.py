"""Groups to classes, classes to commands: arithmetic, on no interface."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.cluster.shaping import (
    FlowGroup,
    FlowGroups,
    classes_of,
    default_groups,
    machine_of,
    own_address,
    parse_classes,
    peers_of,
    read_groups,
    set_commands,
)
from penstock.hardware.cluster import ClusterDocument, Machine
from refusals import refused

PEERS = ("10.0.0.2", "fd00::3")


def cluster(**fields):
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "fd00::3"}
    machines = [{"name": name, "address": address, "nic_gbps": 10} for name, address in addresses.items()]
    return ClusterDocument.model_validate({"machines": machines, **fields})


@st.composite
def many_groups(draw):
    count = draw(st.integers(1, 8))
    weights = draw(st.lists(st.integers(1, 100), min_size=count + 1, max_size=count + 1))
    marks = draw(st.lists(st.none() | st.integers(0, 63), min_size=count, max_size=count, unique=True))
    groups = []
    for number, mark in enumerate(marks):
        share = weights[number] / sum(weights)
        ceiling = draw(st.floats(share, 1.0))
        groups.append(FlowGroup(name=f"g{number}", dscp=mark, share=share, ceiling=ceiling, priority=number))
    return FlowGroups(groups=groups)


@given(many_groups(), st.floats(0.01, 400))
def test_rates_are_the_shares_and_add_up_to_the_interface(groups, gbps):
    made = classes_of(groups, Machine(name="a", nic_gbps=gbps), PEERS)
    assert made.rate == round(gbps * 1e9)
    assert [each.name for each in made.classes] == [group.name for group in groups.groups] + ["rest"]
    for group, each in zip(groups.groups, made.classes, strict=False):
        assert each.rate == round(made.rate * group.share)
        assert each.rate <= each.ceiling <= made.rate
        assert bool(each.addresses) == (group.dscp is None)
    # Each rate is rounded by half a bit at most.
    assert abs(sum(each.rate for each in made.classes) - made.rate) <= len(made.classes)
    assert made.classes[-1].ceiling == made.rate


@given(many_groups())
def test_every_class_is_made_once_and_every_filter_leads_to_one(groups):
    commands = set_commands(classes_of(groups, Machine(name="a", nic_gbps=1), PEERS), "eth0")
    made = [words[words.index("classid") + 1] for words in commands if "classid" in words]
    assert len(set(made)) == len(made) == len(groups.groups) + 2
    assert all(words[words.index("flowid") + 1] in made for words in commands if "flowid" in words)
    assert f"5053:{commands[0][-1]}" == made[-1]
    # A preference holds filters of one protocol.
    kinds = {
        (words[words.index("prio") + 1], words[words.index("protocol") + 1]) for words in commands if "u32" in words
    }
    assert len({preference for preference, _ in kinds}) == len(kinds)


def test_the_words_for_tc():
    groups = FlowGroups(groups=[FlowGroup(name="wire", dscp=10, share=0.5, ceiling=0.75, priority=2)])
    commands = set_commands(classes_of(groups, Machine(name="a", nic_gbps=1), ()), "eth0")
    assert [" ".join(words) for words in commands] == [
        "tc qdisc add dev eth0 root handle 5053: htb default 11",
        "tc class add dev eth0 parent 5053: classid 5053:1 htb rate 1000000000bit ceil 1000000000bit"
        " burst 125000b cburst 125000b",
        "tc class add dev eth0 parent 5053:1 classid 5053:10 htb rate 500000000bit ceil 750000000bit"
        " burst 62500b cburst 93750b prio 2 quantum 100000",
        "tc class add dev eth0 parent 5053:1 classid 5053:11 htb rate 500000000bit ceil 1000000000bit"
        " burst 62500b cburst 125000b prio 7 quantum 100000",
        "tc filter add dev eth0 parent 5053: protocol ip prio 1 u32 match ip dsfield 0x28 0xfc flowid 5053:10",
        "tc filter add dev eth0 parent 5053: protocol ipv6 prio 2 u32 match ip6 priority 0x28 0xfc flowid 5053:10",
    ]


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, {"machines": None}),
        ({"wire": {"dscp": 10}}, {"wire": 10, "gradients": None}),
        ({"wire": {"dscp": 10}, "reduce": "servers"}, {"wire": 10}),
    ],
)
def test_usual_groups_are_what_can_be_told_apart(fields, expected):
    groups = default_groups(cluster(**fields))
    assert {group.name: group.dscp for group in groups.groups} == expected
    assert sum(group.share for group in groups.groups) == pytest.approx(0.9)


def test_the_wires_classes_are_served_in_their_order():
    document = cluster(wire={"dscp_classes": [46, 34, 10]}, reduce="servers")
    groups = default_groups(document)
    assert groups.strict
    made = classes_of(groups, machine_of(document, "a", "unused"), ())
    assert [(each.name, each.dscp, each.priority) for each in made.classes] == [
        ("urgent", 46, 0),
        ("lists", 34, 1),
        ("features", 10, 2),
        ("rest", None, 7),
    ]
    # Whatever goes first may have everything, and what is certain to others is little.
    assert all(each.ceiling == made.rate for each in made.classes)
    assert sum(each.rate for each in made.classes) < 0.1 * made.rate


@pytest.mark.parametrize(
    "marks, reduce, names",
    [
        ([1], "servers", ["wire"]),
        ([1, 2], "servers", ["urgent", "ahead"]),
        ([1, 2], "all-reduce", ["gradients", "urgent", "ahead"]),
        (
            list(range(1, 9)),
            "servers",
            ["urgent", "lists", "features", "class4", "class5", "class6", "class7", "class8"],
        ),
    ],
)
def test_classes_of_the_wire_by_their_number(marks, reduce, names):
    groups = default_groups(cluster(wire={"dscp_classes": marks}, reduce=reduce))
    assert [group.name for group in groups.groups] == names
    made = classes_of(groups, Machine(name="a", nic_gbps=1), PEERS)
    order = [each.priority for each in made.classes]
    assert order == sorted(order) and order[-1] == 7


def test_a_groups_file_in_strict_order(tmp_path):
    file = tmp_path / "groups.yaml"
    file.write_text("strict: true\ngroups: [{name: first, dscp: 46}, {name: second, dscp: 10, share: 0.2}]")
    commands = set_commands(classes_of(read_groups(file), Machine(name="a", nic_gbps=1), ()), "eth0")
    assert [" ".join(words) for words in commands if "prio" in words and "htb" in words] == [
        "tc class add dev eth0 parent 5053:1 classid 5053:10 htb rate 10000000bit ceil 1000000000bit"
        " burst 16384b cburst 125000b prio 0 quantum 200000",
        "tc class add dev eth0 parent 5053:1 classid 5053:11 htb rate 200000000bit ceil 1000000000bit"
        " burst 25000b cburst 125000b prio 1 quantum 200000",
        "tc class add dev eth0 parent 5053:1 classid 5053:12 htb rate 50000000bit ceil 1000000000bit"
        " burst 16384b cburst 125000b prio 7 quantum 10000",
    ]
    assert [" ".join(words) for words in commands if "bfifo" in words] == [
        "tc qdisc add dev eth0 parent 5053:10 bfifo limit 2500000",
        "tc qdisc add dev eth0 parent 5053:11 bfifo limit 2500000",
    ]


def test_on_a_router_gradients_go_to_the_machine_itself():
    document = cluster(wire={"dscp_classes": [46]})
    machine = machine_of(document, "b", "unused")
    made = classes_of(default_groups(document), machine, own_address(machine))
    assert made.classes[0].addresses == ("10.0.0.2",)
    nowhere = Machine(name="c", nic_gbps=1)
    with refused("option-missing"):
        classes_of(default_groups(document), nowhere, own_address(nowhere))


@pytest.mark.parametrize("wire", [{"dscp": 0}, {"dscp_classes": [46, 0]}])
def test_the_mark_of_unmarked_packets_tells_nothing_apart(wire):
    with refused("invalid-value 0"):
        default_groups(cluster(wire=wire))


def test_peers_are_the_other_machines():
    document = cluster()
    assert peers_of(document, machine_of(document, "a", "unused")) == PEERS
    alone = ClusterDocument(machines=[Machine(name="a", nic_gbps=1), Machine(name="b")])
    assert peers_of(alone, alone.machines[0]) == ()
    with refused("option-missing"):
        classes_of(default_groups(alone), alone.machines[0], ())


@pytest.mark.parametrize(
    "groups, sentence",
    [
        ([{"name": "a", "dscp": 1, "share": 0.5}, {"name": "a", "dscp": 2, "share": 0.1}], "the same name"),
        ([{"name": "rest", "share": 0.5}], "the name rest is taken"),
        ([{"name": "a", "share": 0.5}, {"name": "b", "share": 0.1}], "would look alike"),
        ([{"name": "a", "dscp": 1, "share": 0.5}, {"name": "b", "dscp": 2, "share": 0.5}], "less than 1"),
        ([{"name": "a", "dscp": 1, "share": 0.5, "ceiling": 0.4}], "ceiling below its share"),
        ([{"name": "a", "dscp": 64, "share": 0.5}], "63"),
        ([], "at least 1 item"),
        ([{"name": "a", "dscp": 1}], "no share: give it one, or say strict"),
    ],
)
def test_groups_that_cannot_be(groups, sentence):
    with pytest.raises(ValidationError, match=sentence):
        FlowGroups.model_validate({"groups": groups})


def test_strict_order_has_no_priorities_beside_it():
    with pytest.raises(ValidationError, match="strict order is that of the list"):
        FlowGroups.model_validate({"strict": True, "groups": [{"name": "a", "dscp": 1, "priority": 3}]})


def test_a_groups_file_is_refused_with_the_place(tmp_path):
    file = tmp_path / "groups.yaml"
    file.write_text("groups: [{name: features, dscp: 10, share: 2}]")
    with refused("invalid-document groups.yaml groups[0].share"):
        read_groups(file)


def test_a_machine_needs_a_rate():
    with refused("option-missing nic_gbps"):
        classes_of(default_groups(cluster()), Machine(name="a"), PEERS)


def test_counters_in_tcs_own_words():
    text = """class htb 5053:10 parent 5053:1 prio 2 rate 6Gbit ceil 10Gbit burst 732Kb cburst 1220Kb
 Sent 2048 bytes 3 pkt (dropped 1, overlimits 4 requeues 0)
 backlog 0b 0p requeues 0
 lended: 3 borrowed: 0 giants: 0
 tokens: 15625 ctokens: 15625

class htb 5053:1 root rate 10Gbit ceil 10Gbit burst 1220Kb cburst 1220Kb
 Sent 4096 bytes 5 pkt (dropped 0, overlimits 0 requeues 0)
 backlog 0b 0p requeues 0
"""
    whole, leaf = parse_classes(text)
    assert (whole.number, whole.bytes, whole.packets) == ("1", 4096, 5)
    assert (leaf.number, leaf.rate, leaf.ceiling) == ("10", "6Gbit", "10Gbit")
    assert (leaf.bytes, leaf.packets, leaf.dropped, leaf.overlimits) == (2048, 3, 1, 4)
    assert parse_classes("") == ()
