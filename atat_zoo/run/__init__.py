"""The run folder: one process, one lock, and metrics that survive a crash. Imports no torch."""

from atat_zoo.run.atomic import write_bytes, write_json, write_text
from atat_zoo.run.folder import RunFolder
from atat_zoo.run.model_files import sha256_of

__all__ = ["RunFolder", "sha256_of", "write_bytes", "write_json", "write_text"]
