"""What the tree of `src/penstock` keeps to. `make lint` runs this; each line that it prints is something to mend.

Imports count wherever they stand in a file, and so do tables of strings such as "penstock.a.b:NAME", which are imports
that come later. A package's `__init__.py` may name what it offers in such a table; there only its imports count.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
MOST_LINES = 900
MOST_FILES = 25
SMALL = 40
"""Lines below which a file with one importer belongs into that importer."""
WRITTEN_OUT = "penstock.export.plain."
"""Modules that `penstock export` writes out plainly repeat the names of what they stand for."""
LATER = re.compile(r"(penstock(?:\.\w+)+)(?::\w+)?")
REFERENCE = re.compile(r"See `[^`]+`(?: [^.]{0,20})?\.?")


def main() -> int:
    """The exit status: 1 where there is something to mend."""
    paths = sorted((SOURCES / "penstock").rglob("*.py"))
    named = {
        ".".join(each.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"): each for each in paths
    }
    trees = {name: ast.parse(path.read_text()) for name, path in named.items()}
    nodes = {name: read_nodes(tree) for name, tree in trees.items()}
    imports = {name: imported(name, nodes[name], named) for name in named}
    problems = [*circles(imports), *repeated(trees), *sizes(named, imports), *references(nodes)]
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


DEFINITIONS = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
READ = (ast.Import, ast.ImportFrom, ast.Constant, *DEFINITIONS)


def read_nodes(tree: ast.Module) -> list[ast.AST]:
    """The imports, constants and definitions of a module, in order. `ast.walk` takes three times as long."""
    found, left = [], [tree]
    while left:
        node = left.pop()
        if isinstance(node, READ):
            found.append(node)
        inside = []
        for value in vars(node).values():
            if isinstance(value, list):
                inside += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                inside.append(value)
        left += reversed(inside)
    return found


def imported(name: str, nodes: list[ast.AST], named: dict[str, Path]) -> set[str]:
    """The modules that a module imports, now or later."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = (f"{node.module}.{each.name}" for each in node.names)
            found |= {each if each in named else node.module for each in inside}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not is_package(named[name]):
            later = LATER.fullmatch(node.value)
            found |= {later[1]} if later and later[1] in named and not is_package(named[later[1]]) else set()
    return (found & named.keys()) - {name}


def is_package(path: Path) -> bool:
    return path.name == "__init__.py"


def circles(imports: dict[str, set[str]]) -> Iterator[str]:
    """Modules that import themselves by a detour; each circle is cut before the next one is looked for."""
    left = {name: set(others) for name, others in imports.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
            return
        except CycleError as error:
            circle = error.args[1]
            yield f"An import circle: {' <- '.join(circle)}; move what both need below them."
            left[circle[1]] -= {circle[0]}


def repeated(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Public classes of different modules that have the same name."""
    homes = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_" and not name.startswith(WRITTEN_OUT):
                homes[node.name].append(name)
    for name, modules in homes.items():
        if len(modules) > 1:
            yield f"Class {name} stands in {' and '.join(modules)}: one name for one thing."


def sizes(named: dict[str, Path], imports: dict[str, set[str]]) -> Iterator[str]:
    """Folders and files that are too large, and files that are too small to be files."""
    folders = Counter(path.parent.relative_to(SOURCES.parent).as_posix() for path in named.values())
    for folder, count in folders.items():
        if count > MOST_FILES:
            yield f"{folder} has {count} files: at most {MOST_FILES}, divide it by subject."
    importers = Counter(each for name, found in imports.items() if not is_package(named[name]) for each in found)
    for name, path in named.items():
        lines = path.read_text().count("\n")
        if lines > MOST_LINES:
            yield f"{name} has {lines} lines: at most {MOST_LINES}, divide it by subject."
        if lines < SMALL and importers[name] <= 1 and path.stem not in ("__init__", "__main__"):
            yield f"{name} has {lines} lines and one importer: join it with that importer."


def references(nodes: dict[str, list[ast.AST]]) -> Iterator[str]:
    """Docstrings that only say where another docstring is."""
    for name, found in nodes.items():
        for node in found:
            if isinstance(node, DEFINITIONS):
                text = ast.get_docstring(node) or ""
                if REFERENCE.fullmatch(text):
                    yield f"{name}:{node.lineno} {node.name} only says {text!r}: say what it does."


if __name__ == "__main__":
    sys.exit(main())
