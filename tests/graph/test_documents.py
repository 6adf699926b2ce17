"""What is wrong with a document, said in our words: where it is, what must stand there, what was probably meant."""

import json
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from penstock.cluster.cluster_file import read_cluster
from penstock.cluster.shaping import read_groups
from penstock.cost.profile import read_profile
from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem
from penstock.partition import open_partition
from penstock.plan.document import read_plan
from penstock.simulate.document import read_workload
from penstock.train.job import make_job

PYDANTIC = (
    "Input should",
    "inputs are not permitted",
    "Field required",
    "Value error",
    "should have",
    "unable to parse",
)


class Part(StrictDocument):
    """A document inside another."""

    size: int
    name: Annotated[str, Field(pattern="^[a-z]+$", max_length=5)] = "a"


class Whole(StrictDocument):
    """One field for every kind of check."""

    parts: list[Part] = Field([], max_length=2)
    way: Literal["fast", "slow"] = "fast"
    times: Literal[2, 3] = 2
    rate: float = Field(1.0, gt=0, le=10)
    count: int = Field(1, ge=1, lt=5)
    on: bool = True
    either: Part | str = "none"
    table: dict[str, int] = Field({})
    source: str = Field("", validation_alias="from")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"party": []}, "unknown key 'party' (did you mean 'parts'?)"),
        ({"fro": "x"}, "unknown key 'fro' (did you mean 'from'?)"),
        ({"parts": [{"size": 1}, {"sise": 1}]}, "parts[1]: unknown key 'sise' (did you mean 'size'?)"),
        ({"parts": [{"size": 1, "zzz": 2}]}, "parts[0]: unknown key 'zzz' (use one of size, name)"),
        ({"parts": [{}]}, "parts[0].size is missing: add it"),
        ({"parts": [{"size": "x"}]}, "parts[0].size must be a whole number (it is 'x')"),
        ({"parts": [{"size": 1.5}]}, "parts[0].size must be a whole number (it is 1.5)"),
        ({"parts": [3]}, "parts[0] must map keys to values (it is 3)"),
        ({"parts": 3}, "parts must be a list (it is 3)"),
        ({"parts": [{"size": 1}] * 3}, "parts must have at most 2 entries"),
        ({"parts": [{"size": 1, "name": "A"}]}, "parts[0].name must match the pattern ^[a-z]+$ (it is 'A')"),
        ({"parts": [{"size": 1, "name": "abcdef"}]}, "parts[0].name must have at most 5 characters (it is 'abcdef')"),
        ({"way": "fats"}, "way cannot be 'fats' (did you mean 'fast'?)"),
        ({"way": 7}, "way cannot be 7 (use one of fast, slow)"),
        ({"times": 4}, "times cannot be 4 (use 2 or 3)"),
        ({"rate": 0}, "rate must be greater than 0 (it is 0)"),
        ({"rate": 11}, "rate must be at most 10 (it is 11)"),
        ({"rate": "x"}, "rate must be a number (it is 'x')"),
        ({"count": 0}, "count must be at least 1 (it is 0)"),
        ({"count": 5}, "count must be less than 5 (it is 5)"),
        ({"on": "perhaps"}, "on must be true or false (it is 'perhaps')"),
        ({"either": {"size": "x"}}, "either.size must be a whole number (it is 'x')"),
        ({"table": {"a": "b"}}, "table.a must be a whole number (it is 'b')"),
        ({"from": 3}, "from must be a text (it is 3)"),
    ],
)
def test_each_kind_of_mistake(raw, said):
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate(raw)
    found = first_problem(caught.value)
    assert found.startswith(said)
    assert not any(words in found for words in PYDANTIC)


def test_long_values_are_cut():
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate({"rate": "x" * 1000})
    assert len(first_problem(caught.value)) < 120


def plan_file(path):
    path.write_text(json.dumps({"format": "penstock-plan", "version": 2, "jobb": {}}))
    return read_plan(path)


def profile_file(path):
    path.write_text(json.dumps({"format": "penstock-profile", "version": 3, "iteration": 3}))
    return read_profile(path)


def partition_folder(path):
    path.mkdir()
    (path / "partition.json").write_text(json.dumps({"format": "penstock-partition", "version": 1, "part": 3}))
    return open_partition(path)


def yaml_file(read, text):
    def reading(path):
        path.write_text(text)
        return read(path)

    return reading


def cluster_of(path):
    return read_cluster(str(path))


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (
            yaml_file(cluster_of, "machines: [{name: a, nic_gbp: 10}]"),
            "machines[0]: unknown key 'nic_gbp' (did you mean 'nic_gbps'?)",
        ),
        (yaml_file(cluster_of, "machines: [{nic_gbps: 10}]"), "machines[0].name is missing: add it"),
        (yaml_file(cluster_of, "machines: [{name: a}]\nreduce: allreduce"), "(did you mean 'all-reduce'?)"),
        (
            yaml_file(read_workload, "machines: []\ngnn: {stores: 1, workers: 1, store_second: 1}"),
            "gnn.job: unknown key 'store_second' (did you mean 'store_seconds'?)",
        ),
        (yaml_file(read_groups, "group: []"), "unknown key 'group' (did you mean 'groups'?)"),
        (plan_file, "unknown key 'jobb' (did you mean 'job'?)"),
        (profile_file, "unknown key 'iteration' (did you mean 'iterations'?)"),
        (partition_folder, "unknown key 'part' (did you mean 'parts'?)"),
        (lambda path: make_job({"model": "sagee"}, "job.yaml"), "model cannot be 'sagee' (did you mean 'sage'?)"),
        (lambda path: make_job({"fanouts": "a,b"}, "job.yaml"), "fanouts[0] must be a whole number (it is 'a')"),
        (lambda path: make_job({"placement": {"topologi": "host"}}, "job.yaml"), "(did you mean 'topology'?)"),
    ],
)
def test_documents_that_users_write(tmp_path, read, said):
    """Cluster and workload files, plans, profiles, partitions and jobs all speak through one function."""
    with pytest.raises(PenstockError) as caught:
        read(tmp_path / "document")
    sentence = str(caught.value)
    assert said in sentence
    assert sentence.endswith(".") and not sentence.endswith("?.")
    assert not any(words in sentence for words in PYDANTIC)
