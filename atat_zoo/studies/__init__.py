"""A study: arms × seeds, trained as normal run folders, compared with a protocol that is fixed before.

`schema` has its tables, and `study_file` reads them; `processes` trains; `measuring` evaluates on halves of the
held-out text; `results` compares; `runner` does one after the other; `markdown` writes the tables.

The protocol: validation sequences with an even number select (points of the sweep, ideas), those with an odd number
are for claims, the test split is evaluated once. The sweep has a seed of its own.
"""

from atat_zoo.studies.study_file import load
from atat_zoo.studies.study_schema import Study

__all__ = ["Study", "load"]
