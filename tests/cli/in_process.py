"""A command run inside the test's own process: starting one costs seconds."""

import json
import sys

from penstock.cli.main import run


def command(monkeypatch, capsys, *arguments):
    """(exit code, stdout, stderr) of `penstock ...`."""
    monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
    capsys.readouterr()
    code = run()
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def answer(monkeypatch, capsys, *arguments):
    """The object a successful command prints; stderr stays empty."""
    code, out, err = command(monkeypatch, capsys, *arguments, "--json")
    assert code == 0, err
    assert err == ""
    return json.loads(out, parse_constant=_refuse)


def refusal(monkeypatch, capsys, *arguments):
    """The one sentence of a command that must fail with exit code 2, the same in both shapes."""
    code, out, err = command(monkeypatch, capsys, *arguments)
    assert (code, out) == (2, ""), err
    *progress, last = err.splitlines()
    assert last.startswith("Error: ")
    assert "Traceback" not in err
    assert not any(line.startswith("Error") for line in progress)
    code, out, err = command(monkeypatch, capsys, *arguments, "--json")
    assert (code, out) == (2, "")
    text = json.loads(err)["error"]
    assert text[0].isupper() or text[0] in "/'" or not text[0].isalpha(), text
    assert text.rstrip().endswith((".", "?")), text
    return text


def _refuse(word):
    raise ValueError(f"{word} is no JSON")
