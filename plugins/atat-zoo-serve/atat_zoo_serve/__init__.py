"""HTTP server of a model: `app.py` answers, `request_fields.py` validates requests, `batching.py` generates.

This module imports neither FastAPI nor torch, so that command-line errors are reported at once.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Limits:
    """Limits of one request and of all requests together."""

    longest: int = 2048  # tokens of a text, the given ones and special tokens included
    batch_size: int = 64  # texts of a request, and texts that are written together
    waiting: int = 128  # requests whose texts are not all begun
    seconds: float = 120.0  # that a request may take, waiting included
    body: int = 1 << 20  # bytes of a request
    connections: int = 512  # that are open
    arriving: float = 20.0  # seconds in which a request has to be sent
