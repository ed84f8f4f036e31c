"""Compare experiments, and determine which settings may change when a run is resumed.

Does not import torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from atat_zoo.system.errors import clip

# Keys or tables that do not affect the weights except by rounding: locations, the hardware, and what is measured,
# written and kept. A checkpoint's stream identifies its shards by their hash, so the shards may move. An override of
# a resumed run may set those in `RESUMABLE`.
RESUMABLE = (
    *("sampler", "guidance", "evaluation", "data.root", "data.workers", "data.on_corrupt"),
    *("backbone.checkpoint_activations", "train.log_every"),
    *("train.evaluate_every", "train.evaluate_sequences", "train.keep_best", "train.save_every"),
    *(f"train.{key}" for key in ("microbatch_size", "precision", "device", "sharding", "compile", "peak_tflops")),
    *(f"train.{key}" for key in ("keep_checkpoints", "loggers", "callbacks")),
)
_FREE = ("name", "requires", "init_from", "corpus", "tokenizer.path", *RESUMABLE)

# Keys of a corpus that say where its text is, or how to get the text.
_LIES = frozenset({"path", "train", "validation", "test", "source", "tars", "cache", "cache_size", "timeout"})


class Change(NamedTuple):
    """A key path with its values in two experiments, None if absent; `free` if a resumed run may have another value."""

    key: str
    was: Any
    now: Any
    free: bool

    @property
    def resumable(self) -> bool:
        """Whether an override of a resumed run may make this change."""
        return self.key == "train.steps" or _is_in(self.key, RESUMABLE)

    @property
    def of_text(self) -> bool:
        """Whether the key describes the content of the text rather than its location."""
        return self.key.startswith("corpus.") and self.key.rpartition(".")[2] not in _LIES

    def __str__(self) -> str:
        was, now = ("absent" if each is None else clip(repr(each), 60) for each in (self.was, self.now))
        return f"{self.key} changed from {was} to {now}"


def changes(was: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[Change]:
    """Yield a `Change` for each key path at which the tables of two experiments differ."""
    for key in dict.fromkeys([*was, *now]):
        one, other, place = was.get(key), now.get(key), path + key
        if isinstance(one, dict) and isinstance(other, dict):
            yield from changes(one, other, f"{place}.")
        elif one != other:
            yield Change(place, one, other, _is_in(place, _FREE))


def _is_in(key: str, tables: tuple[str, ...]) -> bool:
    return any(f"{key}.".startswith(f"{table}.") for table in tables)


# Free keys that nevertheless change the model, and other keys that do not.
_OF_MODEL, _OF_SHARDS = ("corpus", "tokenizer", "init_from"), ("data.sequences_per_member", "data.dtype")


def between_models(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return a dict from key to both values for the keys that make the models of two experiments differ.

    If a component is replaced by one with a different name, only `use` and a backbone's n-gram prior are compared.
    """
    every = list(changes(one, other))
    replaced = tuple(change.key.removesuffix("use") for change in every if change.key.endswith(".use"))
    return {
        change.key: (change.was, change.now)
        for change in every
        if (change.key.startswith(_OF_MODEL) or not (change.free or change.key in _OF_SHARDS))
        and (change.key.endswith((".use", "backbone.ngram_prior")) or not change.key.startswith(replaced))
    }
