"""API errors: an HTTP status and a message in OpenAI's format."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from atat_zoo.generation.layout import TooLongError
from atat_zoo.system.errors import UserError, clip, nearest
from atat_zoo.system.machine import ran_out
from atat_zoo_serve.batching import StoppedError
from atat_zoo_serve.request_fields import ChatRequest, CompletionRequest, InfillRequest, StreamOptions
from atat_zoo_serve.service import TooLargeError

_CODES = {401: "invalid_api_key", 408: "timeout", 413: "too_large", 429: "rate_limit_exceeded"}
_HEADERS = {
    **{401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}},
    **{status: {"Connection": "close"} for status in (408, 413)},  # the rest of the request may still arrive
}
_PROBLEMS = 8  # maximum number of problems that are reported for a request
_FIELDS = sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields, *InfillRequest.model_fields})
_ROUTES = "GET /health or /v1/models, or POST /v1/completions, /v1/chat/completions or /v1/infill"
# Messages for the framework's own errors.
_SENTENCES = {
    400: "the request cannot be parsed; send JSON in UTF-8, with less nesting",
    404: f"unknown path; use {_ROUTES}",
    405: f"method not allowed; use {_ROUTES}; for web pages from a different origin, start the server with --cors",
}


class RefusedError(Exception):
    """Error with an HTTP status and a message for the client."""

    def __init__(self, status: int, sentence: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.param, self.code = status, sentence, param, code or _CODES.get(status)


class Json(Response):
    """JSON response that escapes unpaired surrogates, which UTF-8 cannot encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON in ASCII, or raise a `ValueError` if it contains NaN or an infinity."""
        return json.dumps(content, allow_nan=False).encode()


def refusal(error: Exception) -> RefusedError:
    """Return the error to report to the client for any exception; an unknown one has status 500 and no details."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, RequestValidationError):
        return _malformed(error)
    if isinstance(error, HTTPException):
        return RefusedError(error.status_code, _SENTENCES.get(error.status_code, error.detail))
    if isinstance(error, UserError):
        code = "context_length_exceeded" if isinstance(error, TooLongError) else None
        param = next((field for field in _FIELDS if str(error).startswith(f"{field}:")), None)
        return RefusedError(413 if isinstance(error, TooLargeError) else 400, str(error), param, code)
    if isinstance(error, StoppedError):
        return RefusedError(503, "the server has stopped; try again after it restarts")
    if ran_out(error):
        return RefusedError(413, "the server ran out of memory; request fewer or shorter texts")
    return RefusedError(500, "internal error; see the server's terminal")


def _malformed(error: RequestValidationError) -> RefusedError:
    """Return an error with the first problem of each invalid field, up to a maximum number of problems."""
    problems: dict[str, str] = {}
    for problem in error.errors()[:_PROBLEMS]:
        _, *path = problem["loc"]
        kind, name = problem["type"], ".".join(clip(each) for each in path if isinstance(each, str))
        text = problem["msg"][:1].lower() + problem["msg"][1:]
        if kind == "json_invalid":
            name, text = "", f"the request is not valid JSON: {problem['ctx']['error']}"
        elif not name:
            text = "the request is not a JSON object; send one with the header Content-Type: application/json"
        elif kind == "extra_forbidden":
            known = list(StreamOptions.model_fields) if len(path) > 1 else _FIELDS
            text = f"is not a field of this request{nearest(path[-1], known)}"
        elif kind == "missing":
            text = "is missing"
        problems.setdefault(name, f"{name}: {text}" if name else text)
    return RefusedError(400, "\n".join(problems.values()), next(iter(problems)) or None)


def table_of(refused: RefusedError) -> dict[str, Any]:
    """Return an error in OpenAI's format, with a type such as `requests` for status 429."""
    kind = "server_error" if refused.status >= 500 else "requests" if refused.status == 429 else "invalid_request_error"
    return {"error": {"message": refused.sentence, "type": kind, "param": refused.param, "code": refused.code}}


async def explained(_: Request, error: Exception) -> Json:
    """Return the JSON response that reports an error, with its status and headers."""
    refused = refusal(error)
    return Json(table_of(refused), refused.status, _HEADERS.get(refused.status))
