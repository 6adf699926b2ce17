"""What a service has for browsers and for other programs that come without a client.

Pages hold no data and need no token; what they show they ask for with one, under /api.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from penstock.service.interface_page import interface_page
from penstock.service.served import Served

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""No page may be framed, loads anything from elsewhere, or is kept by browsers."""


def add_pages(app: FastAPI, served: Served, known: list[Any]) -> None:
    """Add the pages; routes that show data depend on `known`, which asks for the token."""

    @app.get("/api", include_in_schema=False)
    def described() -> HTMLResponse:
        return HTMLResponse(interface_page(app.openapi()), headers=HEADERS)
