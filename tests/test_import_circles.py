"""No module imports itself by a detour, function-level imports and imports for annotations included.

`make lint` checks this among the files and folders of each folder; here it is checked for a folder's `__init__.py`
and the files in it as well.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"


def imported_by(path: Path, modules: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = (f"{node.module}.{each.name}" for each in node.names)
            found |= {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & modules.keys()


def test_no_module_imports_itself_by_a_detour() -> None:
    paths = sorted((SOURCES / "penstock").rglob("*.py"))
    names = {
        ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"): path for path in paths
    }
    order = TopologicalSorter({name: imported_by(path, names) - {name} for name, path in names.items()})
    try:
        order.prepare()
    except CycleError as error:
        raise AssertionError(f"an import circle: {' -> '.join(error.args[1])}") from None
