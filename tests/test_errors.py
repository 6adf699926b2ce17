"""Errors carry a code of a closed vocabulary, which the documentation lists."""

import ast
import copy
import json
import pickle
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.cli.output import print_error
from penstock.errors import CODES, NotFinite, PenstockError, known_code
from penstock.wire.channel import RemoteError
from refusals import refused

ROOT = Path(__file__).parents[1]


def raised() -> Iterator[tuple[str, ast.Call]]:
    """Every place in the sources that makes a PenstockError, or calls its constructor from a subclass."""
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]):
        text = path.read_text()
        for found in re.finditer(r"(?<![\w`])(?<!class )PenstockError\(", text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{path.relative_to(ROOT)}:{line}", call_at(text, found.start())


def call_at(text: str, start: int) -> ast.Call:
    """The call whose text begins there; only that is read as a program, as reading whole files takes seconds."""
    for end in re.finditer(r"\)", text[start:]):
        with suppress(SyntaxError):
            call = ast.parse(text[start : start + end.end()], mode="eval").body
            assert isinstance(call, ast.Call)
            return call
    raise AssertionError(f"no call: {text[start : start + 80]!r}")


def test_every_error_has_a_code_of_the_vocabulary() -> None:
    found = list(raised())
    assert len(found) > 500
    for where, call in found:
        given = [each.value for each in call.keywords if each.arg == "code"]
        assert given, f"{where}: give the error a code"
        if isinstance(given[0], ast.Constant):
            assert given[0].value in CODES, f"{where}: {given[0].value!r} is not in penstock.errors.Code"


def test_every_code_is_used_and_documented_once() -> None:
    documented = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(CODES)
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "errors.py")
    assert [code for code in CODES if f'"{code}"' not in sources] == []


@pytest.mark.parametrize(
    "error", [PenstockError("a b", code="in-use"), NotFinite("c"), RemoteError("d", "PushMissing", "step-conflict")]
)
def test_an_error_survives_pickling_and_copying(error: PenstockError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error) and str(other) == str(error) and other.__dict__ == error.__dict__


def test_a_code_that_another_release_sent_is_an_unexpected_failure() -> None:
    assert known_code("in-use") == "in-use"
    assert known_code("no-such-code") == known_code(None) == known_code(["in-use"]) == "unexpected-failure"


def test_json_has_the_sentence_and_the_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["penstock", "train", "--json"])
    print_error("It is  wrong: mend it.", "invalid-value")
    assert json.loads(capsys.readouterr().err) == {"error": "It is wrong: mend it.", "code": "invalid-value"}


def test_refused_looks_at_the_code_and_the_words() -> None:
    with refused("in-use runs/a"):
        raise PenstockError("runs/a is in use.", code="in-use")
    with pytest.raises(AssertionError, match="in-use"), refused("closed"):
        raise PenstockError("runs/a is in use.", code="in-use")
    with pytest.raises(AssertionError, match="runs/b"), refused("in-use runs/b"):
        raise PenstockError("runs/a is in use.", code="in-use")
    with pytest.raises(pytest.fail.Exception), refused("in-use"):
        pass
