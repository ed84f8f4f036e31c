"""Reads an old record's experiments by the names that their keys have now."""

from __future__ import annotations

from typing import Any

from atat_zoo.run.renamed import today

# Keys that the record does not have, at the defaults by which they change nothing.
NEW: dict[str, Any] = {
    **{"train.loggers": [], "train.callbacks": [], "train.algorithms": []},
    **{"data.shuffled_shards": 1, "data.damaged": "fatal", "data.rows": "packed", "train.evaluate_sequences": 0},
}
# Likewise where the objective uses this kind.
NEW_OF_KIND: dict[str, dict[str, Any]] = {"rates": {"rates.use": "noise"}}
# Likewise where a table uses this part, whatever the table is.
NEW_OF_PART: dict[str, dict[str, Any]] = {
    "transformer": {"reads": "x"},
    "dit": {"neighbours": 0, "checkpoint_activations": False},
    "files": {"detokenizer.use": "none"},
}
# Experiments that have another name: what ATAT was is named by what it does.
NAMES = {
    f"{folder}atat": f"{folder}importance"
    for folder in ("", "finetuning/", "lm1b/", "owt-small/", "text8/", "wikitext103/")
}
# `quickstart` is one of the new ATAT.
REPLACED = ("quickstart",)
# What was changed on purpose, None where the key is gone: the CPU-sized experiments begin with counts, and a warm-up of
# 1,000 steps no longer takes their whole easy stage.
_COUNTS: dict[str, Any] = {"backbone.neighbours": 2}
_STAGES: dict[str, Any] = {**_COUNTS, "curriculum.warmup_steps": None}
# The correction is of the variants that it corrects, as is the gentle curriculum, and so at every size.
_PLAIN: dict[str, Any] = {"objective.correction": "none"}
_CORRECTED: dict[str, Any] = {"objective.correction": "horvitz_thompson"}
_GENTLE: dict[str, Any] = {**_CORRECTED, "curriculum.sharpness": 0.5, "curriculum.progress": "linear"}
CHANGED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("importance_only", "no_curriculum"), _COUNTS),
    **dict.fromkeys(("importance", "curriculum_only", "no_importance"), _STAGES),
    **dict.fromkeys(("finetuning/source", "finetuning/uniform"), _PLAIN),
    "mdlm": {**_COUNTS, **_PLAIN},
}
for _size in ("lm1b", "owt-small", "text8", "wikitext103"):
    CHANGED |= dict.fromkeys((f"{_size}/importance_only", f"{_size}/no_curriculum"), _CORRECTED)
    CHANGED |= {f"{_size}/{name}": _GENTLE for name in ("importance", "curriculum_only", "no_importance")}
# Those of the large corpora, which could not be built: by folder. Logits no longer stand in memory, so more
# sequences are evaluated at once.
_AT_ONCE: dict[str, Any] = {"evaluation.batch_size": 32, "train.evaluate_sequences": 2048}
_GPT2: dict[str, Any] = {"tokenizer.bos": "<|endoftext|>", "tokenizer.eos": "<|endoftext|>", "data.special": "both"}
LARGE: dict[str, dict[str, Any]] = {
    "text8": _AT_ONCE,
    "lm1b": {
        **_AT_ONCE,
        **{"tokenizer.bos": "[CLS]", "tokenizer.eos": "[SEP]", "data.special": "both"},
        **{"corpus.detokenizer.use": "lm1b", "data.rows": "document"},
        # No sentence of the training files is held out where there is a published set.
        "corpus.validation": ["corpora/lm1b/heldout-monolingual.tokenized.shuffled/*"],
        **{"corpus.test": [], "corpus.test_share": 0.0},
    },
    "owt-small": {
        **_AT_ONCE,
        **_GPT2,
        "corpus.train": ["corpora/openwebtext/train/*.jsonl*"],
        "corpus.validation": ["corpora/openwebtext/validation/*.jsonl*"],
        "corpus.test_share": 0.0,
    },
    "wikitext103": {
        **_AT_ONCE,
        **_GPT2,
        **{"corpus.document.use": "heading", "corpus.detokenizer.use": "wikitext"},
        "corpus.train": ["corpora/wikitext-103-raw/wiki.train.raw*"],
        "corpus.validation": ["corpora/wikitext-103-raw/wiki.valid.raw*"],
        "corpus.test": ["corpora/wikitext-103-raw/wiki.test.raw*"],
    },
}


def renamed(resolved: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a record's resolved experiments: by name, every key path of today with its value."""
    known = {}
    for was, paths in complete(resolved).items():
        name = NAMES.get(was, was)
        if was not in REPLACED:
            paths = {**NEW, **_of_kinds(paths), **_of_parts(paths), **_today(paths), "name": name.replace("/", "-")}
            if "corpus.document" in paths:  # a name, and now a part
                paths["corpus.document.use"] = paths.pop("corpus.document")
            known[name] = {**paths, **CHANGED.get(name, {}), **LARGE.get(name.partition("/")[0], {})}
    return {name: {key: value for key, value in paths.items() if value is not None} for name, paths in known.items()}


def _of_kinds(paths: dict[str, Any]) -> dict[str, Any]:
    """Return the new keys of the kinds that an experiment's objective uses."""
    from atat_zoo import Zoo

    uses = Zoo.load().component("objective", paths["objective.use"]).uses if "objective.use" in paths else ()
    return {path: value for kind, new in NEW_OF_KIND.items() if kind in uses for path, value in new.items()}


def _of_parts(paths: dict[str, Any]) -> dict[str, Any]:
    """Return the new keys of the parts that an experiment uses."""
    return {
        f"{path.removesuffix('use')}{key}": value
        for path, used in paths.items()
        if path.endswith(".use") and used in NEW_OF_PART
        for key, value in NEW_OF_PART[used].items()
    }


def complete(resolved: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a record's resolved experiments by name, each with what it shares with the others."""
    common = resolved.get("common", {})
    return {name: {**common, **paths} for name, paths in resolved.get("each", {}).items()}


def _today(paths: dict[str, Any]) -> dict[str, Any]:
    """Rename key paths as the keys of a run folder are renamed."""
    from tests.golden.make import flat

    table: dict[str, Any] = {}
    for path, value in paths.items():
        *outer, last = path.split(".")
        place = table
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return flat(today(table))
