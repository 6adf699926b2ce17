"""What a service has for browsers and for other programs that come without a client.

Pages hold no data and need no token (`gate.OPEN_PATHS`); what they show they ask for with one, under /api.
"""

import base64
import hashlib
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse

from penstock.report.script import SCRIPT
from penstock.service.gate import HEADERS
from penstock.service.interface_page import interface_page
from penstock.service.prometheus import CONTENT_TYPE, exposition
from penstock.service.served import Served

_PAGE = Path(__file__).with_name("page.html")
"""The live page: one file that loads nothing else."""


def add_pages(app: FastAPI, served: Served) -> None:
    """Add the pages."""
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
    """Headers that let the page's own script run, known by its hash, and that of the reports that it opens."""
    own = page.partition("<script>")[2].partition("</script>")[0]
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (own, SCRIPT)]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return {**HEADERS, "Content-Security-Policy": f"{HEADERS['Content-Security-Policy']}; script-src {allowed}"}
