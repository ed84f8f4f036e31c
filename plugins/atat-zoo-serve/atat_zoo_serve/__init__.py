"""HTTP server for a model: `app.py` has the routes, `request_fields.py` validates requests, `batching.py` samples.

This module does not import FastAPI or torch, so that command-line errors are reported immediately.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Limits:
    """Limits per request and for the whole server."""

    longest: int = 2048  # tokens per text, including given and special tokens
    batch_size: int = 64  # texts per request, and texts that are generated together
    waiting: int = 128  # requests with texts that have not been started
    seconds: float = 120.0  # maximum duration of a request, including its time in the queue
    body: int = 1 << 20  # bytes per request
    connections: int = 512  # open at the same time
    arriving: float = 20.0  # seconds within which a request must arrive
