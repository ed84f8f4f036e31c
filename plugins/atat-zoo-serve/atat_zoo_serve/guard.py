"""What stands before the server: whom it answers, and how much of a request it reads."""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress
from urllib.parse import urlsplit

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atat_zoo_serve.refusals import RefusedError, explained
from atat_zoo_serve.service import Service

# By which this machine is called here. Another name that leads here is that of a page that wants to use the model.
_NAMES = ("localhost", "127.0.0.1", "::1")


class Guard:
    """Answers only who may ask, and reads no more of a request than may be."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the server answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        left = self.service.limits.body
        slow = f"a request has to be sent within {self.service.limits.arriving:g} s here; send a shorter text"
        large = f"a request has at most {left:,} bytes here; send a shorter text"

        late: float | None = asyncio.get_running_loop().time() + self.service.limits.arriving

        async def within() -> Message:
            nonlocal left, late
            try:
                async with asyncio.timeout_at(late):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, slow) from None
            late = late if message.get("more_body") else None  # what follows is that the client goes away
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, large)
            return message

        try:
            self.check(scope["path"], headers)
            if int(headers.get("content-length", b"0")) > left:
                raise RefusedError(413, large)
        except (RefusedError, ValueError) as error:
            refused = error if isinstance(error, RefusedError) else RefusedError(400, "content-length is no number")
            await (await explained(Request(scope), refused))(scope, receive, send)
            return
        await self.app(scope, within, send)

    def check(self, path: str, headers: dict[str, bytes]) -> None:
        """Refuse pages of elsewhere, and who has not the key."""
        host = None
        with suppress(ValueError):
            host = urlsplit(f"//{headers.get('host', b'').decode('latin-1')}").hostname
        if self.service.here and host not in _NAMES:
            raise RefusedError(403, "this server is for this machine only; begin it with --host to answer others")
        key = self.service.key
        if key is not None and path.startswith("/v1/"):
            given = headers.get("authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {key}".encode()):
                raise RefusedError(401, "this server asks for a key; send the header Authorization: Bearer KEY")
