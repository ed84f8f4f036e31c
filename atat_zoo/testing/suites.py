"""Which module of the conformance suite checks what."""

_CHECKED = {
    "guidance": "classifier guidance",
    "masking": "masking visible_text_masking",
    "metrics": "metric",
    "networks": "backbone",
    "objectives": "bound objective",
    "sampling": "order policy remasking sampler stopping_rule token_sampling tokens_per_step",
    "steps": "adaptive curriculum estimator mask_drawing mask_rates noise position_bias position_sets target"
    " uncertainty",
    "tasks": "task",
    "text": "boundary corpus detokenizer judge tokenizer transform",
    "training": "algorithm callback logger optimizer schedule",
}
#: The module with `check_KIND`, by kind and by the few other contracts that have one.
SUITES = {what: module for module, checked in _CHECKED.items() for what in checked.split()}
