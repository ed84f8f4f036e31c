"""Old names of keys, components, kinds and flags, and names from other tools, with their replacements.

None of these names is accepted, but the error for an unknown name suggests the current one.
"""

KINDS = {
    "stage": "transform",
    "rates": "mask_rates",
    "pace": "tokens_per_step",
    "remask": "remasking",
    "stop": "stopping_rule",
    "draw": "token_sampling",
}

# (kind, old name) -> name
COMPONENTS = {
    ("mask_rates", "bell"): "logit_normal",
    ("objective", "sets"): "set_causal",
    ("objective", "strided"): "strided_causal",
    ("tokens_per_step", "strided"): "position_set",
}

_RATIO, _SAMPLING = {"final_rate": "min_lr_ratio"}, {"draw": "token_sampling"}
_STABLE = {"kl": "kl_threshold", "confidence": "confidence_threshold", "history": "history_length"}
_TEMPERED = {"sure": "confident_temperature", "unsure": "uncertain_temperature"}
_DRAWS, _BLOCK, _NUCLEUS = {"draws": "mask_samples"}, {"size": "block_size"}, {"p": "top_p"}
# The name of a component, or the section of a file -> old key -> key
KEYS: dict[str, dict[str, str]] = {
    "train": {
        "ema": "ema_decay",
        "clip": "max_grad_norm",
        "checkpoints_kept": "keep_checkpoints",
        "peak_flops": "peak_tflops",
    },
    "data": {
        "damaged": "on_corrupt",
        "rows": "packing",
        "stages": "transforms",
        "special": "special_tokens",
        "form": "format",
    },
    "evaluation": _DRAWS,
    "dit": {"neighbours": "ngram_prior"},
    **dict.fromkeys(("cosine", "linear", "restarts", "wsd"), _RATIO),
    "mixture": {"of": "components", "shares": "weights", "until": "stopping_strategy"},
    "huggingface": {"column": "text_field", "configuration": "config_name"},
    "characters": {"special": "special_tokens"},
    "random_length": {"share": "probability", "least": "min_tokens"},
    "minimum_length": {"tokens": "min_tokens"},
    "repetition": {"distinct": "min_distinct"},
    "set_causal": {"prompts": "prompt_share", "gaps": "gap_share", "subsets": "subset_share"},
    "adaptive": _DRAWS,
    "held_out": _DRAWS,
    "zero_shot": _DRAWS,
    "protocol": {"of": "protocol", **_DRAWS},
    "block": _BLOCK,
    "blocks": _BLOCK,
    "blockwise": {"block": "block_size"},
    "semi_autoregressive": {"size": "block_size", "within": "block_sampler"},
    "nucleus": _NUCLEUS,
    **dict.fromkeys(("remdm_cap", "remdm_conf", "remdm_loop", "remdm_rescale"), _NUCLEUS),
    "klass": _STABLE,
    "kl_stable": _STABLE,
    "confidence_tempered": _TEMPERED,
    "confidence_history": _TEMPERED,
    "extended": {"added": "added_steps"},
    "gradient_clipping": {"by": "clipping_type", "threshold": "clipping_threshold"},
    "combination": {old: KINDS[old] for old in ("pace", "remask", "stop", "draw")},
    "policy": {"pace": "tokens_per_step"},
    **dict.fromkeys(("left_to_right", "strided", "greedy_last"), _SAMPLING),
}

FLAGS = {
    "--number": "--num-samples",
    "--by": "--judge",
    "--draws": "--mask-samples",
    "--prices": "--sampler-sequences",
    "--bracket": "--bracket-sequences",
    "--vocabulary": "--vocab-size",
    "--element": "--array-index",
    "--waiting": "--max-queue",
    "--longest": "--max-length",
    "--seconds": "--timeout",
}

# Options of other tools and the equivalent keys, for each command that takes KEY=VALUE.
_TRAINING = {
    "--steps": "train.steps",
    "--max-steps": "train.steps",
    "--lr": "optimizer.learning_rate",
    "--learning-rate": "optimizer.learning_rate",
    "--batch-size": "train.batch_size",
    "--precision": "train.precision",
    "--device": "train.device",
    "--seed": "seed",
    "--length": "data.length",
    "--max-length": "data.length",
    "--warmup-steps": "schedule.warmup_steps",
    "--weight-decay": "optimizer.weight_decay",
    "--save-every": "train.save_every",
    "--init-from": "init_from",
}

_GENERATION = {
    "--steps": "sampler.steps",
    "--temperature": "sampler.temperature",
    "--guidance": "guidance.use",
}
SETTINGS = {
    **dict.fromkeys(("train", "check", "resolve"), _TRAINING),
    **dict.fromkeys(("sample", "infill", "judge", "serve", "eval"), _GENERATION),
}

# Commands of other tools and the equivalent commands here.
COMMANDS = {
    "generate": "atat sample RUN",
    "evaluate": "atat eval RUN",
    "finetune": "atat train EXPERIMENT init_from=RUN",
    "fine-tune": "atat train EXPERIMENT init_from=RUN",
    "run": "atat train EXPERIMENT",
    "fit": "atat train EXPERIMENT",
    "pretrain": "atat train EXPERIMENT",
    "resume": "atat train --resume RUN",
    "test": "atat eval RUN --split test",
    "list": "atat zoo list, or atat ls for runs",
    "runs": "atat ls",
    "show": "atat zoo show KIND NAME",
    "download": "atat data get NAME",
    "validate": "atat check EXPERIMENT",
    "benchmark": "atat bench samplers RUN",
    "convert": "atat import MODEL or atat export RUN",
    "chat": "atat sample RUN --chat QUESTION",
    "init": "atat new experiment",
}
