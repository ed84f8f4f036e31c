"""The conformance suite: tests the contract of each kind of part, for the zoo's own parts and those of plugins.

The test file of a plugin:

    import pytest
    from atat_zoo.testing import cases

    @pytest.mark.parametrize("case", cases(distribution="atat-zoo-example"), ids=str)
    def test_conformance(case):
        case.run()

Each case tests one promise of one part with its default parameters, and fails with a message that names it;
`case.run(examples=1000)` tries more batches where hypothesis draws them. If a part needs parameters, files, or other
sizes than a network of one layer and texts of six tokens, give an example in the module `examples` of your package: a
function by kind and name, which may write files into a folder, and returns the parameters.

    EXAMPLES = {("corpus", "mine"): lambda folder: {"path": written(folder)}}

For further parameters, call the check of the kind: `check_masking(Spiral(turns=3))`.

A masking strategy may state two facts: `direction = -1` if p falls with importance, 0 if it ignores it (+1 without the
attribute); and `positional = True` if equal importance at two positions may give different p. The limits of a
`temperature` are tested. One that draws a mask by what is visible has the method `draw_mask`, and promises of its own.

Needs hypothesis (`pip install atat-zoo[test]`); pytest is not imported.
"""

from atat_zoo.testing.conformance import CHECKS, Case, cases, check_description, check_imports
from atat_zoo.testing.examples import EXAMPLES
from atat_zoo.testing.guidance import check_classifier, check_guidance
from atat_zoo.testing.masking import check_masking, check_visible_text_masking
from atat_zoo.testing.metrics import check_metric
from atat_zoo.testing.networks import check_backbone
from atat_zoo.testing.objectives import check_bound, check_objective
from atat_zoo.testing.sampling import (
    check_draw,
    check_order,
    check_pace,
    check_policy,
    check_remask,
    check_sampler,
    check_stop,
)
from atat_zoo.testing.stages import check_stage
from atat_zoo.testing.steps import (
    check_adaptive,
    check_curriculum,
    check_estimator,
    check_mask_drawing,
    check_noise,
    check_position_bias,
    check_rates,
    check_target,
    check_uncertainty,
)
from atat_zoo.testing.tasks import check_task
from atat_zoo.testing.text import check_boundary, check_corpus, check_detokenizer, check_judge, check_tokenizer
from atat_zoo.testing.training import check_algorithm, check_callback, check_logger, check_optimizer, check_schedule

__all__ = ["CHECKS", "EXAMPLES", "Case", "cases", "check_description", "check_imports"]
__all__ += ["check_classifier", "check_draw", "check_guidance", "check_order", "check_pace", "check_policy"]
__all__ += ["check_remask", "check_sampler", "check_stop"]
__all__ += [
    "check_backbone",
    "check_bound",
    "check_masking",
    "check_metric",
    "check_objective",
    "check_visible_text_masking",
]
__all__ += ["check_adaptive", "check_curriculum", "check_estimator", "check_mask_drawing", "check_noise"]
__all__ += ["check_position_bias", "check_rates", "check_target", "check_uncertainty"]
__all__ += ["check_stage", "check_task"]
__all__ += ["check_boundary", "check_corpus", "check_detokenizer", "check_judge", "check_tokenizer"]
__all__ += ["check_algorithm", "check_callback", "check_logger", "check_optimizer", "check_schedule"]
