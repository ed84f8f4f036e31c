"""`RunFolder`, which reads and writes the files of a run, and locks its folder for one process at a time.

Does not import torch.
"""

from atat_zoo.experiment.runs.model_files import sha256_of
from atat_zoo.experiment.runs.run_folder import RunFolder
from atat_zoo.system.atomic_files import write_bytes, write_json, write_text

__all__ = ["RunFolder", "sha256_of", "write_bytes", "write_json", "write_text"]
