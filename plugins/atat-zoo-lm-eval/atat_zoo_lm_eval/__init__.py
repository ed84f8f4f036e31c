"""The model `atat_zoo` of the lm-evaluation-harness, which importing this package registers."""

# First the harness's own models: it looks for them only while no other is known.
import lm_eval.models  # noqa: F401

from atat_zoo_lm_eval.run_lm import RunLM

__all__ = ["RunLM"]
