"""The contracts that each module of the conformance suite checks."""

_CHECKED = {
    "guidance_checks": "classifier guidance",
    "masking_checks": "masking stepwise_masking visible_text_masking",
    "metric_checks": "metric",
    "backbone_checks": "backbone",
    "objective_checks": "bound objective",
    "sampler_checks": "order policy remasking sampler stopping_rule token_sampling tokens_per_step",
    "training_step_checks": "adaptive curriculum estimator mask_drawing mask_rates noise "
    "position_bias position_sets target uncertainty",
    "task_checks": "task",
    "data_checks": "boundary corpus detokenizer judge tokenizer transform",
    "training_checks": "algorithm callback logger optimizer schedule",
}
#: The module that defines `check_X`, for each kind X and the few other contracts that have a check.
SUITES = {what: module for module, checked in _CHECKED.items() for what in checked.split()}
