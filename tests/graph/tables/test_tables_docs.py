"""Every spec and every command shown in docs/tables.md, run."""

import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tables_workbench import Workbench
from typer.testing import CliRunner

from penstock.cli.data import data
from penstock.graph import Graph
from penstock.graph.tables import import_tables
from penstock.graph.tables.spec import EdgeSpec, NodeSpec

DOC = (Path(__file__).parents[3] / "docs" / "tables.md").read_text()


def _blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)
    return [block for written, block in found if written == language]


@pytest.fixture
def shop(bench: Workbench) -> Workbench:
    for part, users in enumerate((["u0", "u1"], ["u2"])):
        columns = {
            "user_id": users,
            "age": np.arange(len(users)) + 20.0,
            "embedding": pa.array([[0.5, 1.5]] * len(users), pa.list_(pa.float32(), 2)),
            "income": np.arange(len(users)) * 1000.0 + part,
            "country": ["NA", "FR"][: len(users)],
            "plan": ["paid", "free"][: len(users)],
            "device": ["tv", None][: len(users)],
            "signup_time": pa.array([1_600_000_000] * len(users), pa.timestamp("s")),
            "lat": np.ones(len(users)),
            "lon": np.zeros(len(users)),
            "segment": [4, None][: len(users)],
            "fold": ["train", "val"][: len(users)],
        }
        bench.table(f"users/{part}.parquet", columns)
    bench.table("items.csv.gz", {"sku": [7, 8, 9], "price": [1.5, None, 3.0]})
    buys = {"user": ["u0", "u1", "gone"], "item": [7, 8, 9], "stars": [1, 5, 3], "w": [0.5, 1, 2], "t": [10, 20, 30]}
    bench.table("buys.csv.gz", {**buys, "fold": ["train", "test", None]})
    bench.table("follows.tsv", {"follower": ["u0", "u1", "u0", "u2"], "followed": ["u1", "u0", "u1", "u2"]})
    bench.table("tags.jsonl", {"item": [7, 7, 9], "tag": ["red", "new", "red"]})
    return bench


@pytest.mark.parametrize("number", range(len(_blocks("yaml"))))
def test_specs_work(shop: Workbench, number: int) -> None:
    shop.text("spec.yaml", _blocks("yaml")[number])
    graph = import_tables(shop.folder / "spec.yaml", shop.out)
    assert graph.nodes["user"].count == 3


def test_the_long_spec_does_what_its_comments_say(shop: Workbench) -> None:
    shop.text("spec.yaml", _blocks("yaml")[-1])
    graph = import_tables(shop.folder / "spec.yaml", shop.out)
    users = graph.nodes["user"]
    assert users.x.shape == (3, 1 + 2 + 1 + 2 + 2)
    assert users.fields["device"].tolist() == [0, -1, 0] and users.categories["device"] == ["tv"]
    assert users.fields["place"].shape == (3, 2) and users.y.tolist() == [4, -1, 4]
    assert graph.nodes["tag"].ids.tolist() == ["red", "new"]
    assert graph.edges["user", "buys", "item"].count == 1
    assert graph.edges["user", "buys", "item"].held_out["test"].tolist() == [[1, 1]]
    assert graph.edges["item", "bought-by", "user"].fields["weight"].tolist() == [0.5]
    assert graph.edges["user", "follows", "user"].count == 3
    assert graph.edges["tag", "rev-has", "item"].count == 3
    assert graph.origin["dropped"] == {"user__buys__item": 1}
    assert set(graph.origin["standardised"]["user"]) == {"income"}


def test_commands_and_python_work(shop: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.folder)
    shop.text("spec.yaml", _blocks("yaml")[-1])
    commands = [line for block in _blocks("") for line in block.splitlines() if line.startswith("penstock data ")]
    assert len(commands) == 5
    for command in commands:
        result = CliRunner().invoke(data, shlex.split(command)[2:], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    again = import_tables("tables/shop/spec.yaml", "again")
    assert again.num_edges == Graph.open("data/shop").num_edges
    (program,) = (block for block in _blocks("python") if "import_tables" in block)
    exec(program.replace('"data/shop"', '"data/second"').replace('"tables/shop"', '"tables/second"'), {})
    assert (shop.folder / "tables/second/nodes/user.csv").is_file()


def test_every_key_is_explained() -> None:
    for model in (NodeSpec, EdgeSpec):
        for key in model.model_fields:
            assert f"`{key}`" in DOC, key
