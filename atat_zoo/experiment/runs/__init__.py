"""The run folder: one process, one lock, and metrics that survive a crash.

Imports no torch.
"""

from atat_zoo.experiment.runs.model_files import sha256_of
from atat_zoo.experiment.runs.run_folder import RunFolder
from atat_zoo.system.atomic_files import write_bytes, write_json, write_text

__all__ = ["RunFolder", "sha256_of", "write_bytes", "write_json", "write_text"]
