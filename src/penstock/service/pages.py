"""Pages of a service for browsers and for programs without a client.

Pages hold no data and need no token (`gate.OPEN_PATHS`); their scripts request data with one, under /api.
"""

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from operator import itemgetter
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse

from penstock.report.markup import SCRIPT
from penstock.service.database import STATES
from penstock.service.gate import HEADERS
from penstock.service.scheduler import Served

# A page that describes the HTTP interface, generated from its OpenAPI document, without scripts.

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


# Figures of a service for Prometheus, in its text format.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]


def exposition(counts: Mapping[str, int], devices: Sequence[Mapping[str, Any]]) -> str:
    """The current figures of a service: `counts` of jobs by state, and `devices` as the HTTP interface shows them."""
    lines: list[str] = []
    for name, kind, about, samples in _families(counts, devices):
        lines += [f"# HELP penstock_{name} {about}", f"# TYPE penstock_{name} {kind}"]
        lines += [f"penstock_{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _families(
    counts: Mapping[str, int], devices: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, str, list[Sample]]]:
    yield "jobs", "gauge", "Jobs by state.", [({"state": state}, counts.get(state, 0)) for state in STATES]
    yield "device_jobs", "gauge", "Jobs that run on the device.", _by_device(devices, lambda each: len(each["running"]))
    for place, room, granted, measured in (
        ("device", "bytes", "granted_device_bytes", "device_bytes"),
        ("host", "host_bytes", "granted_host_bytes", "host_bytes"),
    ):
        name, about = f"{place}_memory", f"memory of the {place}"
        yield f"{name}_bytes", "gauge", f"All {about} that jobs may take.", _by_device(devices, itemgetter(room))
        about_granted = f"The {about} that was predicted for running jobs and granted to them."
        yield f"{name}_granted_bytes", "gauge", about_granted, _summed(devices, granted)
        about_peak = f"The {about} that running jobs have taken at most."
        yield f"{name}_peak_bytes", "gauge", about_peak, _summed(devices, measured)
    yield "cores", "gauge", "Cores that jobs may take.", _by_device(devices, itemgetter("cores"))
    yield "cores_granted", "gauge", "Cores of running jobs.", _summed(devices, "cores")
    running = [(device["name"], job) for device in devices for job in device["running"]]
    steps = [({"job": str(job["id"]), "device": device}, job["steps"]) for device, job in running]
    yield "job_steps_total", "counter", "Steps of a running job since its process started.", steps
    speeds = [({"job": str(job["id"]), "device": device}, job["speed"]) for device, job in running]
    known = [(labels, speed) for labels, speed in speeds if speed is not None]
    yield "job_speed", "gauge", "Speed of a running job relative to running alone.", known


def _by_device(devices: Sequence[Mapping[str, Any]], value: Callable[[Mapping[str, Any]], float]) -> list[Sample]:
    return [({"device": str(each["name"])}, float(value(each))) for each in devices]


def _summed(devices: Sequence[Mapping[str, Any]], field: str) -> list[Sample]:
    return _by_device(devices, lambda each: sum(job[field] or 0 for job in each["running"]))


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


_PAGE = Path(__file__).with_name("page.html")
"""The live page: one self-contained file."""


def add_pages(app: FastAPI, served: Served) -> None:
    """Add the routes of the service's pages to the application."""
    page = _PAGE.read_text(encoding="utf-8")
    page_headers = _with_script(page)

    @app.get("/api", include_in_schema=False)
    def described() -> HTMLResponse:
        return HTMLResponse(interface_page(app.openapi()), headers=HEADERS)

    @app.get("/", include_in_schema=False)
    def live() -> HTMLResponse:
        return HTMLResponse(page, headers=page_headers)

    @app.get("/metrics")
    def metrics() -> PlainTextResponse:
        """Figures for Prometheus; its `authorization` setting sends the token."""
        text = exposition(served.operations.database.counts(), served.scheduler.devices())
        return PlainTextResponse(text, headers=HEADERS, media_type=CONTENT_TYPE)


def _with_script(page: str) -> dict[str, str]:
    """Headers that allow the page's own script, identified by its hash, and that of the reports that it opens."""
    own = page.partition("<script>")[2].partition("</script>")[0]
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (own, SCRIPT)]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return {**HEADERS, "Content-Security-Policy": f"{HEADERS['Content-Security-Policy']}; script-src {allowed}"}
