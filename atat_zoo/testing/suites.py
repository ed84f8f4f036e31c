"""Which module of the conformance suite checks what."""

_CHECKED = {
    "guidance": "classifier guidance",
    "masking": "masking visible_text_masking",
    "metrics": "metric",
    "networks": "backbone",
    "objectives": "bound objective",
    "sampling": "draw order tokens_per_step policy remasking sampler stop",
    "steps": "adaptive curriculum estimator mask_drawing noise position_bias position_sets rates target uncertainty",
    "tasks": "task",
    "text": "boundary corpus detokenizer judge stage tokenizer",
    "training": "algorithm callback logger optimizer schedule",
}
#: The module with `check_KIND`, by kind and by the few other contracts that have one.
SUITES = {what: module for module, checked in _CHECKED.items() for what in checked.split()}
