"""The run folder: one process, one lock, and metrics that survive a crash. Imports no torch."""

from atat_zoo.run.atomic import write_bytes, write_json, write_text
from atat_zoo.run.folder import RunFolder

__all__ = ["RunFolder", "write_bytes", "write_json", "write_text"]
