"""The HTTP interface of a service. `gate` authenticates requests before they get here."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from penstock.errors import Code, PenstockError
from penstock.service.gate import HEADERS, Gate
from penstock.service.pages import add_pages
from penstock.service.scheduler import Served
from penstock.version import __version__

MOST_LISTED = 500
MOST_NUMBER = (1 << 63) - 1
"""The largest number that the database and files can hold."""
JobNumber = Annotated[int, Path(ge=0, le=MOST_NUMBER, description="the number of a job")]
_STATUS: dict[Code, int] = {
    "unknown-name": 404,
    "file-not-found": 404,
    "not-permitted": 403,
    "untrusted-code": 403,
    "closed": 409,
    "in-use": 409,
    "file-exists": 409,
    "too-large": 413,
    "not-available": 503,
    "write-failed": 507,
}
_LONGEST_NAME = 100
"""Characters of a name in a request that an error quotes."""
_EVENT_PAUSE_S = 0.2
_DEVICES_EVERY, _STILL_EVERY = 5, 75
"""Numbers of pauses between two reports of the devices, and between keep-alive lines."""


class Submission(BaseModel):
    """Jobs to queue: all of them, or none."""

    model_config = ConfigDict(extra="forbid")
    job: dict[str, Any] = Field(description="fields of the job (docs/job.md); paths are absolute")
    sweep: dict[str, list[Any]] = Field({}, description="fields with the values to try: a job for each combination")
    priority: int = Field(0, ge=-1000, le=1000, description="jobs with a higher number go first")
    changes: dict[str, Any] = Field({}, description="fields that replace those of `job`; the job's name says them")
    name: str = Field("", max_length=100, description="what the job is called in lists; its graph and model by default")


def make_app(served: Served, token: str, host: str = "") -> FastAPI:
    """The HTTP interface of a service that listens at `host`; requests need `token`."""
    app = FastAPI(title="Penstock queue", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, token=token, host=host)
    _answer_errors(app)
    _add_jobs(app, served)
    _add_watching(app, served)
    add_pages(app, served)
    return app


def _add_jobs(app: FastAPI, served: Served) -> None:
    operations = served.operations

    @app.post("/api/jobs", status_code=201)
    def submit(submission: Submission) -> dict[str, Any]:
        """Queue a job, or one for each combination of a sweep's values."""
        records = operations.submit(
            submission.job, submission.sweep, submission.priority, submission.changes, submission.name
        )
        return {"jobs": [record.shown() for record in records]}

    @app.get("/api/jobs")
    def jobs(
        state: Annotated[list[str] | None, Query(description="only jobs in these states")] = None,
        before: int | None = Query(
            None, ge=0, le=MOST_NUMBER, description="continue a list: only jobs with smaller numbers"
        ),
        limit: int = Query(100, ge=1, le=MOST_LISTED),
    ) -> dict[str, Any]:
        """Jobs, newest first, and how many there are in each state."""
        found = operations.database.jobs(state or (), before, limit)
        return {
            "jobs": served.shown(found),
            "counts": operations.database.counts(),
            "next": found[-1].id if len(found) == limit else None,
        }

    @app.get("/api/jobs/{number}")
    def job(number: JobNumber) -> dict[str, Any]:
        """One job with its document and, if it has ended, its result."""
        (shown,) = served.shown([operations.database.job(number)])
        return {**operations.described(number), **shown}

    @app.get("/api/jobs/{number}/log")
    def log(number: JobNumber, offset: int = Query(0, ge=0, le=MOST_NUMBER)) -> dict[str, Any]:
        """What the job has printed from a byte on; `next` is where to continue, `final` whether nothing will follow."""
        return operations.log(number, offset)

    @app.get("/api/jobs/{number}/metrics")
    def metrics(number: JobNumber, offset: int = Query(0, ge=0, le=MOST_NUMBER)) -> dict[str, Any]:
        """Records of the run's metrics from a byte on; `next` is where to continue."""
        return operations.metrics(number, offset)

    @app.post("/api/jobs/{number}/cancel")
    def cancel(number: JobNumber) -> dict[str, Any]:
        """Cancel a job; one that runs writes a checkpoint first."""
        return operations.cancel(number).shown()

    @app.post("/api/jobs/{number}/retry")
    def retry(number: JobNumber) -> dict[str, Any]:
        """Retry a job that failed or was cancelled; it continues from its newest checkpoint, if it has one."""
        return operations.retry(number).shown()

    @app.get("/api/jobs/{number}/report", response_class=HTMLResponse)
    def report(number: JobNumber) -> HTMLResponse:
        """The page of the job's run (report.html)."""
        return HTMLResponse(operations.report(number), headers=HEADERS)

    @app.post("/api/drain")
    def drain() -> dict[str, Any]:
        """Accept and start no more jobs, and end the service when the running ones have ended."""
        return {"running": operations.drain()}


def _add_watching(app: FastAPI, served: Served) -> None:
    @app.get("/api/devices")
    def devices() -> dict[str, Any]:
        """Devices with their memory, and what runs on each of them."""
        shown = {"devices": served.scheduler.devices(), "policy": served.scheduler.policy.name}
        return {**shown, "draining": served.operations.draining}

    @app.get("/api/events")
    def events(request: Request) -> StreamingResponse:
        """Changes as server-sent events: `job` (a job's record), `devices`, or `reload` for a
        client that fell behind.
        """
        return StreamingResponse(_stream(request, served), media_type="text/event-stream")

    @app.get("/api/openapi.json")
    def openapi() -> dict[str, Any]:
        """The description of this interface."""
        return app.openapi()


async def _stream(request: Request, served: Served) -> AsyncIterator[str]:
    number, quiet, devices = served.feed.newest, 0, ""
    yield "retry: 2000\n\n"
    while not served.closing and not await request.is_disconnected():
        lines, number = _changes(served, number)
        shown = json.dumps(served.scheduler.devices()) if quiet % _DEVICES_EVERY == 0 else devices
        if shown != devices:
            devices = shown
            lines.append(f'event: devices\ndata: {{"devices": {devices}}}\n\n')
        quiet += 1
        if not lines and quiet % _STILL_EVERY == 0:
            # A comment line keeps connections open, and detects those that are gone.
            lines.append(": still here\n\n")
        for line in lines:
            yield line
        await asyncio.sleep(_EVENT_PAUSE_S)


def _changes(served: Served, number: int) -> tuple[list[str], int]:
    """Events after a number, as lines, and the number of the last one."""
    found = served.feed.after(number)
    if found is None:
        return ["event: reload\ndata: {}\n\n"], served.feed.newest
    lines = [f"event: {event.kind}\ndata: {json.dumps(event.fields)}\n\n" for event in found]
    return lines, found[-1].number if found else number


def _answer_errors(app: FastAPI) -> None:
    """Answer every error with one sentence and a code."""

    def answer(status: int, sentence: str, code: Code) -> JSONResponse:
        # Quoted parts of a request may not be valid text.
        quoted = sentence.encode("utf-8", "backslashreplace").decode()
        return JSONResponse({"error": quoted, "code": code}, status, HEADERS)

    @app.exception_handler(PenstockError)
    async def refused(request: Request, error: PenstockError) -> JSONResponse:
        return answer(_STATUS.get(error.code, 400), str(error), error.code)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problem = error.errors()[0]
        where = ".".join(str(part)[:_LONGEST_NAME] for part in problem["loc"])
        return answer(400, f"The request is not valid: {where}: {problem['msg']}.", "invalid-document")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        codes: dict[int, Code] = {404: "unknown-name"}
        return answer(error.status_code, str(error.detail), codes.get(error.status_code, "usage"))

    @app.exception_handler(OSError)
    async def of_system(request: Request, error: OSError) -> JSONResponse:
        what = error.strerror or type(error).__name__
        return answer(503, f"The system refuses what the service needs ({what}): try again later.", "not-available")

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return answer(500, f"The service failed to answer ({what}): see its output.", "unexpected-failure")
