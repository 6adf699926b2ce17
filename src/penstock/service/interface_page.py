"""A page that describes the HTTP interface, made from its OpenAPI document without any script."""

from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 50rem; padding: 1rem; }
section { border-top: 1px solid #8888; padding: .5rem 0; overflow-wrap: anywhere; }
h2 { font: 600 1rem ui-monospace, monospace; } li code { margin-right: .5em; }
"""


def interface_page(schema: dict[str, Any]) -> str:
    """The page; every operation with its parameters and the fields of its request."""
    sections = [
        _section(method, path, operation, schema)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    title = f"{schema['info']['title']} {schema['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1>"
        "<p>Every request needs the header <code>Authorization: Bearer TOKEN</code>, with the text of the file"
        " <code>token</code> in the service's folder. Errors are JSON objects with <code>error</code>, a sentence, and"
        " <code>code</code>. The same description as JSON is at <code>/api/openapi.json</code>.</p>"
        f"{''.join(sections)}</html>\n"
    )


def _section(method: str, path: str, operation: dict[str, Any], schema: dict[str, Any]) -> str:
    fields = [(each["name"], each.get("description", "")) for each in operation.get("parameters", [])]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        described = schema.get("components", {}).get("schemas", {}).get(name, {})
        fields += [(each, about.get("description", "")) for each, about in described.get("properties", {}).items()]
    listed = "".join(f"<li><code>{escape(name)}</code>{escape(about)}</li>" for name, about in fields)
    text = escape(operation.get("description", ""))
    return f"<section><h2>{method.upper()} {escape(path)}</h2><p>{text}</p><ul>{listed}</ul></section>"
