"""Models of the user's, by where they are."""

from pathlib import Path

import pytest
import torch

from penstock.nn.user_module import build_user_module, user_module_location
from refusals import refused

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner = torch.nn.Linear(inputs, outputs)

def number(inputs, outputs):
    return 7

def narrow(width):
    return Net(width, width)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_class_of_a_file(file: Path) -> None:
    made = build_user_module(f"{file}:Net", 3, 2)
    assert isinstance(made, torch.nn.Module) and made.inner.weight.shape == (2, 3)


def test_something_of_a_package() -> None:
    with refused("user-code-failed inputs=3"):
        build_user_module("torch.nn:Linear", 3, 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Net", "invalid-value"),
        ("{file}:Ne", "unknown-name Net"),
        ("{file}:number", "user-code-failed"),
        ("{file}:narrow", "user-code-failed"),
        ("none.py:Net", "file-not-found none.py"),
        ("no_such_package:Net", "user-code-failed"),
    ],
)
def test_what_is_none_is_one_sentence(file: Path, name: str, said: str) -> None:
    with refused(said):
        build_user_module(name.format(file=file), 3, 2)


def test_a_file_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    with refused("user-code-failed ZeroDivisionError"):
        build_user_module(f"{tmp_path / 'bad.py'}:Net", 1, 1)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "mine.py").write_text(SOURCE + f"\nNet.number = {number}\n")
    assert [build_user_module(f"{tmp_path / str(n) / 'mine.py'}:Net", 1, 1).number for n in (1, 2)] == [1, 2]


def test_found_from_any_folder(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.chdir(file.parent)
    assert user_module_location("mine.py:Net") == f"{file}:Net"
    assert user_module_location("package.models:Net") == "package.models:Net"
