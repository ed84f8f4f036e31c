"""The web server for a model, with limits on connections and on the duration of requests.

uvicorn's own `limit_concurrency` is not used, because it counts idle connections and refuses all others at its limit.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from atat_zoo_serve import Limits
from atat_zoo_serve.app import application
from atat_zoo_serve.refusals import Json, RefusedError, table_of
from atat_zoo_serve.service import Service

_ENDING = 2  # seconds that unfinished responses have to end
_LATER = 1.5  # multiple of `Limits.arriving` after which a connection is closed
_QUEUE = 1024  # connections that the operating system holds until they are accepted


class Server(uvicorn.Server):
    """Server that runs until it receives Ctrl-C or SIGTERM, and then ends unfinished responses with an error."""

    def __init__(self, service: Service) -> None:
        connection: Any = partial(Connection, limits=service.limits)
        config = uvicorn.Config(
            application(service),
            http=connection,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=_ENDING,
            # Connections that asyncio accepts per iteration of its loop; opening or closing one takes several of them.
            backlog=max(1, min(_QUEUE, _files()) // 32),
        )
        super().__init__(config)
        self.service = service

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or []:
            each.listen(_QUEUE)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.worker.stop()
        # A client that does not read would keep its response open.
        aborting = asyncio.get_running_loop().call_later(_ENDING / 2, self._abort)
        await super().shutdown(sockets)
        aborting.cancel()

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:  # otherwise, it is already shutting down
            super().handle_exit(sig, frame)

    @contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in this context; unlike uvicorn, do not raise them again at its end, so the exit is clean."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _files() -> int:
    """Return the maximum number of files that this process can open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most  # RLIM_INFINITY is -1


class Connection(H11Protocol):
    """Connection with time limits for receiving a request and for a client that does not read the response.

    At the limit on connections, a new one replaces the one that has waited longest for a request, or is refused.
    """

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = limits
        self.since = 0.0  # when the server began to wait for a request
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def waits(self) -> bool:
        """Whether the server is waiting for a request or for the rest of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait()
        if len(self.connections) > min(self.limits.connections, _files() // 2):
            others = cast("set[Connection]", self.connections) - {self}
            waiting = [other for other in others if other.waits and not other.transport.is_closing()]
            if waiting:
                min(waiting, key=lambda other: other.since).transport.abort()
            else:
                self._refuse()

    def _refuse(self) -> None:
        body = Json(table_of(RefusedError(503, "the server has too many connections; try again later"))).body
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Retry-After: 1\r\nConnection: close\r\n\r\n".encode() + bytes(body))
        self.transport.close()

    def _wait(self) -> None:
        self.since = self.loop.time()
        self._cancel("request")
        # Later than the guard's limit, so that the guard can answer an incomplete request with an error.
        self._timers["request"] = self.loop.call_later(_LATER * self.limits.arriving, self._end)

    def _end(self) -> None:
        if self.waits:
            self.transport.abort()

    def _cancel(self, *names: str) -> None:
        for name in names:
            if timer := self._timers.pop(name, None):
                timer.cancel()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._timers["answer"] = self.loop.call_later(self.limits.arriving, self.transport.abort)

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel("answer")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel("request", "answer")
