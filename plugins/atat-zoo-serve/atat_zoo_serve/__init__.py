"""A model over HTTP: `app.py` answers, `request_fields.py` says what may be asked for, `batching.py` writes.

Nothing of FastAPI or torch is imported here, so that a mistake on the command line is refused at once.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Limits:
    """What one request, and all of them together, may ask for."""

    longest: int = 2048  # tokens of a text, the given ones and special tokens included
    batch_size: int = 64  # texts of a request, and texts that are written together
    waiting: int = 128  # requests whose texts are not all begun
    seconds: float = 120.0  # that a request may take, waiting included
    body: int = 1 << 20  # bytes of a request
    connections: int = 512  # that are open
    arriving: float = 20.0  # seconds in which a request has to be sent
