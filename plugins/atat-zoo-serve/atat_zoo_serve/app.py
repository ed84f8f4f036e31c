"""The web application: routes, responses to requests, access control, and limits on request size."""

from __future__ import annotations

import asyncio
import hmac
import html
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atat_zoo.reports.offline_page import alone, asset, fill, inert, policy
from atat_zoo.system.errors import UserError, clip
from atat_zoo_serve.batching import BusyError, Done, Drawn, Event, Failed, Job, StoppedError
from atat_zoo_serve.refusals import Json, RefusedError, explained, refusal, table_of
from atat_zoo_serve.request_fields import ChatRequest, CompletionRequest, InfillRequest, TextRequest
from atat_zoo_serve.responses import Answer, ChatAnswer, CompletionAnswer, InfillAnswer
from atat_zoo_serve.service import Plan, Service, rewrites

_T = TypeVar("_T")
_HERE = "atat_zoo_serve"
# Names of this machine. A request to a different name may come from a malicious web page (DNS rebinding).
_NAMES = ("localhost", "127.0.0.1", "::1")
_LATE = "the request exceeded the server's time limit; request fewer steps or less text, or try again later"


def application(service: Service) -> FastAPI:
    """Return the FastAPI application for a model; its startup starts the worker thread, and its shutdown stops it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await to_thread.run_sync(service.worker.close)

    web = FastAPI(title=service.name, docs_url=None, redoc_url=None, lifespan=lifespan, default_response_class=Json)
    web.add_middleware(Guard, service=service)
    if service.cors:  # outside the guard: a browser's preflight request has no key, and a page can read refusals
        web.add_middleware(
            CORSMiddleware,
            allow_origins=service.cors,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("Retry-After",),
        )
    for each in (RequestValidationError, HTTPException, RefusedError, UserError, Exception):
        web.add_exception_handler(each, explained)

    @web.get("/", response_class=HTMLResponse)
    async def home() -> HTMLResponse:
        text, allowed = page(service.name, service.about, keyed=service.key is not None)
        return HTMLResponse(text, headers={"Content-Security-Policy": allowed})

    @web.get("/health")
    async def health() -> Json:
        if not service.worker.alive:
            raise RefusedError(503, "the generation thread has ended; restart the server")
        return Json({"status": "ok", "waiting": service.worker.queue, "writing": service.worker.writing})

    @web.get("/v1/models")
    async def models() -> Json:
        return Json({"object": "list", "data": [service.about]})

    @web.get("/v1/models/{name}")
    async def model(name: str) -> Json:
        _same_model(service, name)
        return Json(service.about)

    @web.post("/v1/completions")
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        return await _answered(service, request, asked, partial(service.completion, asked), CompletionAnswer)

    @web.post("/v1/chat/completions")
    async def chat(asked: ChatRequest, request: Request) -> Response:
        return await _answered(service, request, asked, partial(service.chat, asked), ChatAnswer)

    @web.post("/v1/infill")
    async def infill(asked: InfillRequest, request: Request) -> Response:
        return await _answered(service, request, asked, partial(service.infill, asked), InfillAnswer)

    return web


# Answers


async def _answered(
    service: Service, request: Request, asked: TextRequest, make: Callable[[], Plan], form: type[Answer]
) -> Response:
    loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()
    late = loop.time() + service.limits.seconds
    if asked.model is not None:
        _same_model(service, asked.model)
    plan = await to_thread.run_sync(make)
    answer = form(model=service.name, asked=asked, plan=plan)

    def tell(event: Event) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(events.put_nowait, event)

    begin = partial(service.begin, plan)
    job = Job(
        sampler=plan.sampler,
        seed=plan.seed,
        begin=begin,
        tell=tell,
        follows=bool(asked.stream),
        weighs=plan.weighs,
        rewrites=rewrites(plan.sampler),
    )
    try:
        service.worker.submit(job)
    except BusyError:
        waiting = f"the queue is full ({service.limits.waiting} requests)"
        raise RefusedError(429, f"{waiting}; try again later") from None
    except StoppedError as error:
        raise refusal(error) from None
    try:
        if asked.stream:
            # A request that is refused before it begins gets an error status rather than a stream.
            first = await _attended(request, late, _next(events))
            chunks = _chunks(answer, first, events, late)
            return EventStream(chunks, partial(service.worker.cancel, job))
        await _attended(request, late, _whole(answer, events))
        return Json(answer.body())
    except BaseException:
        service.worker.cancel(job)
        raise


async def _next(events: asyncio.Queue[Event]) -> Drawn | Done:
    event = await events.get()
    if isinstance(event, Failed):
        refused = refusal(event.error)
        raise event.error if refused.status == 500 else refused
    return event


async def _whole(answer: Answer, events: asyncio.Queue[Event]) -> None:
    while not answer.finished:
        answer.read(await _next(events))


async def _attended(request: Request, late: float, work: Awaitable[_T]) -> _T:
    """Return the result of an awaitable, or raise if it exceeds the time limit or the client disconnects."""

    async def away() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(away())
    try:
        left = late - asyncio.get_running_loop().time()
        await asyncio.wait((working, leaving), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise RefusedError(499, "the client disconnected") if leaving.done() else RefusedError(408, _LATE)
    finally:
        working.cancel()
        leaving.cancel()


async def _chunks(answer: Answer, first: Drawn | Done, events: asyncio.Queue[Event], late: float) -> AsyncIterator[str]:
    event = first
    try:
        while True:
            if chunk := answer.read(event):
                yield _event(chunk)
                # During a long stream, let other tasks run and notice if the client disconnects.
                await asyncio.sleep(0)
            if answer.finished:
                break
            async with asyncio.timeout_at(late):
                event = await _next(events)
    except TimeoutError:
        yield _event(table_of(RefusedError(408, _LATE)))
        return
    except Exception as error:
        refused = refusal(error)
        yield _event(table_of(refused))
        if refused.status == 500:
            raise
        return
    if answer.asked.stream_options and answer.asked.stream_options.include_usage:
        yield _event(answer.last())
    yield "data: [DONE]\n\n"


def _event(table: dict[str, Any]) -> str:
    return f"data: {json.dumps(table, allow_nan=False)}\n\n"


class EventStream(StreamingResponse):
    """Stream of server-sent events, which calls `end` when it finishes or the client disconnects."""

    def __init__(self, chunks: AsyncIterator[str], end: Callable[[], None]) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self.end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.end()


def _same_model(service: Service, name: str) -> None:
    if name != service.name:
        said = f"unknown model {clip(name)!r}; use {service.name!r}, or leave model out"
        raise RefusedError(404, said, "model", "model_not_found")


# Access control


class Guard:
    """Middleware that checks access, and limits the size of a request and the time it takes to arrive."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on to the application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        left = self.service.limits.body
        slow = f"the request did not arrive within {self.service.limits.arriving:g} s; send a shorter text"
        large = f"the request exceeds {left:,} bytes; send a shorter text"

        late: float | None = asyncio.get_running_loop().time() + self.service.limits.arriving

        async def within() -> Message:
            nonlocal left, late
            try:
                async with asyncio.timeout_at(late):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, slow) from None
            late = late if message.get("more_body") else None  # afterwards, the only message is a disconnect
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, large)
            return message

        try:
            self.check(scope["path"], headers)
            if int(headers.get("content-length", b"0")) > left:
                raise RefusedError(413, large)
        except (RefusedError, ValueError) as error:
            refused = error if isinstance(error, RefusedError) else RefusedError(400, "Content-Length is not a number")
            await (await explained(Request(scope), refused))(scope, receive, send)
            return
        await self.app(scope, within, send)

    def check(self, path: str, headers: dict[str, bytes]) -> None:
        """Raise a `RefusedError` if a local server is addressed by another name, or a request to /v1/ lacks the key."""
        host = None
        with suppress(KeyError, ValueError):
            host = urlsplit(f"//{headers['host'].decode('latin-1')}").hostname
        if self.service.here and host not in _NAMES:
            raise RefusedError(
                403, "this server only accepts requests to localhost; start it with --host 0.0.0.0 to accept others"
            )
        key = self.service.key
        if key is not None and path.startswith("/v1/"):
            given = headers.get("authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {key}".encode()):
                raise RefusedError(401, "the API key is missing or wrong; send the header Authorization: Bearer KEY")


def page(name: str, about: dict[str, Any], *, keyed: bool) -> tuple[str, str]:
    """Return a model's HTML page, with a field for the API key if `keyed`, and its Content-Security-Policy header."""
    script = alone(asset("page.js", _HERE))
    allowed = policy(script, connect="'self'")
    parts = {
        "policy": allowed,
        "name": html.escape(name.encode("utf-8", "replace").decode()),
        "style": asset("page.css") + asset("page.css", _HERE),
        "given": inert({"about": about, "keyed": keyed}),
        "script": script,
    }
    return fill(asset("page.html", _HERE), parts), f"{allowed}; frame-ancestors 'none'"
