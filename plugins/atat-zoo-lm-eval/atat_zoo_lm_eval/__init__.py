"""The model `atat_zoo` for the lm-evaluation-harness; importing this package registers it."""

# Import the harness's own models first, because it registers them only while no other model is registered.
import lm_eval.models  # noqa: F401

from atat_zoo_lm_eval.run_lm import RunLM

__all__ = ["RunLM"]
