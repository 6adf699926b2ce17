"""Fields of a document by their path, and every combination of their values."""

import pytest

from penstock.errors import PenstockError
from penstock.graph.document_sweep import fields_of, parse_sweeps, points_of, with_point
from penstock.simulate.document import WorkloadDocument

KNOWN = fields_of(WorkloadDocument)
JOBS = {
    "machines": [{"name": "a", "nic_gbps": 1}, {"name": "b", "nic_gbps": 1}],
    "gnn": {"one": {"stores": 1, "workers": 1}, "two": {"stores": 1, "workers": 2}},
}
MODEL = {"llm": {"model": {"layers": 2}, "servers": {"count": 1}}}


def test_values_are_read_as_yaml_and_combined():
    sweeps = parse_sweeps(["nic_gbps=1,2.5", "placement=together"])
    assert points_of(sweeps) == [
        {"nic_gbps": 1, "placement": "together"},
        {"nic_gbps": 2.5, "placement": "together"},
    ]
    assert [list(point.values()) for point in points_of(parse_sweeps(["a=1,2", "b=3,4"]))] == [
        [1, 3], [1, 4], [2, 3], [2, 4],
    ]  # fmt: skip


def test_commas_within_a_list_are_not_between_values():
    (sweep,) = parse_sweeps(["fanouts=[10, 5],[5,5],auto"])
    assert sweep.values == ([10, 5], [5, 5], "auto")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("nic_gbps", [9, 9]),
        ("machines.nic_gbps", [9, 9]),
        ("machines[1].nic_gbps", [1, 9]),
        ("machines[a].nic_gbps", [9, 1]),
    ],
)
def test_a_field_of_all_or_of_one(field, values):
    changed = with_point(JOBS, {field: 9}, KNOWN)
    assert [machine["nic_gbps"] for machine in changed["machines"]] == values
    assert JOBS["machines"][0]["nic_gbps"] == 1


def test_one_of_several_jobs_and_one_without_a_name():
    changed = with_point(JOBS, {"gnn[two].workers": 5}, KNOWN)
    assert [job["workers"] for job in changed["gnn"].values()] == [1, 5]
    assert set(changed["gnn"]) == {"one", "two"}
    alone = {**JOBS, "gnn": {"stores": 1, "workers": 1}}
    assert with_point(alone, {"workers": 5}, KNOWN)["gnn"]["workers"] == 5


def test_the_same_name_belongs_to_what_the_document_has():
    assert with_point(MODEL, {"nic_gbps": 400}, KNOWN)["llm"]["servers"] == {"count": 1, "nic_gbps": 400}
    assert with_point(MODEL, {"iterations": 4}, KNOWN)["iterations"] == 4


@pytest.mark.parametrize(
    ("document", "field", "said"),
    [
        (JOBS, "nic_gpbs", "No field is called 'nic_gpbs' here: did you mean 'nic_gbps'?"),
        (JOBS, "machine.nic_gbps", "did you mean 'machines.nic_gbps'?"),
        (JOBS, "machines[7].nic_gbps", "there is no such element"),
        (JOBS, "machines[0.nic_gbps", "write the field as"),
        (JOBS, "seed[0]", "there is only one seed"),
        (MODEL, "machines.nic_gbps", "No field is called"),
        (JOBS, "resources", "can mean machines.resources or gnn.resources: name one of them."),
    ],
)
def test_fields_that_are_not_there(document, field, said):
    with pytest.raises(PenstockError) as error:
        with_point(document, {field: 1}, KNOWN)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["nic_gbps"], "is not FIELD=VALUE"),
        (["nic_gbps=1,,2"], "is not FIELD=VALUE"),
        (["a=1", "a=2"], "names a twice"),
        (["a={"], "is not valid YAML"),
        (["a=" + ",".join(map(str, range(40))), "b=" + ",".join(map(str, range(40)))], "1,600 combinations"),
    ],
)
def test_sweeps_that_cannot_be_read(texts, said):
    with pytest.raises(PenstockError) as error:
        parse_sweeps(texts)
    assert said in str(error.value)
