"""The one file of source that an exported folder has: the files of `plain`, joined."""

import ast
from importlib import resources

PACKAGE = "penstock.train.export.plain"
FILES = (
    *("edge_lists", "layers", "attention", "typed_layers", "layer_ends", "heads", "parts", "models"),
    "loading",
)
"""Each builds on those before it; the docstring of the last is that of the whole."""


def joined_source() -> str:
    """The text of model.py: a docstring, the imports of all files, and what follows them in each."""
    modules, names, bodies, docstring = set[str](), dict[str, set[str]](), list[str](), ""
    for name in FILES:
        text = resources.files(PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
        tree, lines, end = ast.parse(text), text.splitlines(), 0
        for node in tree.body:
            if isinstance(node, ast.Import):
                modules |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.setdefault(str(node.module), set()).update(each.name for each in node.names)
            else:
                continue
            end = node.end_lineno or 0
        bodies.append("\n".join(lines[end:]).strip("\n"))
        docstring = "\n".join(lines[: tree.body[0].end_lineno])
    return "\n\n\n".join([f"{docstring}\n\n{_import_lines(modules, names)}", *bodies]) + "\n"


def _import_lines(modules: set[str], names: dict[str, set[str]]) -> str:
    """A line for each module that is no file of `plain`; those of torch last, as it alone is no part of Python."""
    lines = [f"import {module}" for module in sorted(modules)]
    outside = [module for module in sorted(names) if not module.startswith(PACKAGE)]
    lines += [f"from {module} import {', '.join(sorted(names[module]))}" for module in outside]
    of_torch = [line for line in lines if line.split()[1].startswith("torch")]
    return "\n".join([*(line for line in lines if line not in of_torch), "", *of_torch])
