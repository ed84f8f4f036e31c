"""A study: arms × seeds, trained in ordinary run folders and compared with a protocol that is fixed in advance.

`study_schema` declares the tables of a study file and `study_file` loads them; `processes` trains; `run_measurement`
evaluates on halves of the held-out text; `study_results` compares the arms; `runner` runs these steps; and `markdown`
writes the tables.

The protocol: even-numbered validation sequences are for model selection (such as choosing a point of the sweep),
odd-numbered ones are for reported results, and the test split is evaluated once. The sweep has its own seed.
"""

from atat_zoo.studies.study_file import load
from atat_zoo.studies.study_schema import Study

__all__ = ["Study", "load"]
