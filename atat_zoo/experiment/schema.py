"""Experiments, and their sections that are not components: `[data]`, `[train]`, `[evaluation]`."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import attrs

from atat_zoo.registry import TABLES, component, component_param, components_param, param
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import Problem

# Keys of [data] that determine the shards, with their names in a manifest, on which folder names depend.
RECORDED = {"special_tokens": "special", "packing": "rows", "format": "form"}


@component
class DataSpec:
    """Settings for turning text into sequences, shards and a stream of batches."""

    root: str = param("data", help="folder of the built shards")
    length: int = param(128, help="L, the number of tokens per sequence, including special tokens", ge=1)
    special_tokens: Literal["none", "document", "sequence", "both"] = param(
        "document",
        help="special tokens to add. document: EOS after every document; sequence: BOS at the beginning and EOS at "
        "the end of every sequence; both; or none. Defaults to none for dialogues, because their template adds "
        "special tokens, and for the corpora sotu and text8",
    )
    format: Literal["text", "chat"] = param(
        "text", help="text: running text; chat: dialogues, with the loss on the assistant's tokens only"
    )
    packing: Literal["packed", "document"] = param(
        "packed",
        help="packed: sequences of running text; document: one document per sequence, truncated or padded. For "
        "dialogues, packed puts several in a sequence, without attention from one to another; document puts one "
        "in a sequence and fills the rest with EOS, which the model learns as part of the answer",
    )
    remainder: Literal["drop", "pad"] = param(
        "drop",
        help="what to do with the leftover tokens at the end of a packed split: drop them, or pad them to a "
        "full sequence",
    )
    sequences: int | None = param(None, help="maximum number of training sequences; default: all sequences", ge=1)
    sequences_per_member: int = param(256, help="number of sequences per member of a shard, which is a tar file", ge=1)
    sequences_per_shard: int = param(
        4096, help="maximum number of sequences per shard; reduced if lanes would otherwise have no shard", ge=1
    )
    dtype: Literal["auto", "uint16", "uint32"] = param(
        "auto", help="integer type of stored tokens; auto picks the smallest that fits"
    )
    lanes: int = param(
        8,
        help="C, the number of parallel lanes of the stream: sample n comes from lane n mod C; must be a multiple of "
        "the number of ranks",
        ge=1,
    )
    shuffled_shards: int = param(
        1, help="number of shards that a lane shuffles together; 1 reads one shard after another", ge=1
    )
    on_corrupt: Literal["error", "skip"] = param(
        "error",
        help="how to handle a damaged training shard: error stops with an error message, skip leaves out and "
        "counts the damaged members",
    )
    transforms: Any = components_param(
        "transform", help="transforms and filters of training sequences, applied in the order of the list"
    )
    workers: int = param(
        0, help="number of data loader processes per rank, which does not affect the sample order", ge=0, le=1024
    )

    def __attrs_post_init__(self) -> None:
        if self.sequences is not None and self.sequences < self.lanes:
            raise ValueError(
                f"sequences = {self.sequences} is less than lanes = {self.lanes}; raise `sequences` or reduce `lanes`"
            )

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings that shards record: a dict from their name in the manifest to their value."""
        return {stored: getattr(self, key) for key, stored in RECORDED.items()}

    def check(self, experiment: "Experiment") -> Iterator[Problem]:
        """Yield a problem for each setting or component that does not work with dialogues, if `format` is "chat"."""
        if self.format == "text":
            return
        parts, one = experiment.parts, 'set data.packing = "document"'
        objective, estimator = parts["objective"], parts["estimator"]
        if not parts["corpus"].holds_dialogues:
            known = "use files or huggingface, or shards built from either"
            yield Problem(
                "corpus", f'{parts["corpus"].name!r} has no dialogues, which data.format = "chat" needs; {known}'
            )
        if self.special_tokens != "none":
            said = (
                f'"{self.special_tokens}" does not apply to dialogues, whose special tokens come from the chat template'
            )
            yield Problem("data.special_tokens", f'{said}; set it to "none"')
        if self.dtype == "uint16":
            yield Problem("data.dtype", 'dialogues are stored as "uint32"; set it to "auto"')
        if self.transforms:
            yield Problem("data.transforms", "transforms would truncate the answers of dialogues; remove them")
        for metric in experiment.evaluation.metrics:
            if metric.reads == "texts":
                said = f"{metric.title!r} scores unconditional samples, but this model answers dialogues"
                yield Problem("evaluation.metrics", f'{said}; remove it, or use the task "answers"')
        if self.packing != "packed":
            return
        if not objective.separates_documents:
            said = f"objective {objective.name!r} attends over the whole sequence, including the other dialogues in it"
            yield Problem("data.packing", f"{said}; {one}")
        if parts["backbone"].both_ways_only or getattr(parts["backbone"], "shift", False):
            said = f"backbone {parts['backbone'].name!r} attends over the whole sequence"
            yield Problem("data.packing", f"{said}; {one}")
        if parts["backbone"].ngram_prior:
            yield Problem(
                "backbone.ngram_prior",
                f"the n-gram prior would read tokens from other dialogues in the sequence; set it to 0, or {one}",
            )
        if "estimator" in objective.uses and estimator.learns:
            yield Problem(
                "data.packing", f"estimator {estimator.name!r} reads all dialogues in a sequence together; {one}"
            )


@component
class TrainSpec:
    """Settings for the training loop: steps, batch size, precision, devices, checkpoints."""

    steps: int = param(1000, help="number of optimizer steps", ge=1)
    batch_size: int = param(64, help="global batch size: sequences per optimizer step over all ranks", ge=1)
    microbatch_size: int | Literal["auto"] | None = param(
        None,
        help="micro-batch size per rank, for gradient accumulation; default: the whole batch; auto halves the "
        "micro-batch whenever GPU memory runs out",
        ge=1,
    )
    max_grad_norm: float = param(1.0, help="maximum gradient norm for gradient clipping; 0 disables clipping", ge=0)
    ema_decay: float = param(0.0, help="decay per step of the EMA of the weights; 0 disables the EMA", ge=0, lt=1)
    precision: Literal["auto", "fp32", "bf16"] = param(
        "auto", help="precision of the network; auto: bf16 if the GPU or CPU supports it, otherwise fp32"
    )
    device: str = param(
        "auto", help="device to train on: cpu, gpu or mps (Apple); auto: a GPU that supports float64, or else the CPU"
    )
    sharding: Literal["none", "full"] = param(
        "none",
        help="how to distribute training; none: DDP; full: FSDP, which shards weights, gradients and optimizer state "
        "over the ranks",
    )
    compile: Literal["auto"] | bool = param(
        False,
        help="whether to compile the backbone with torch.compile, which takes a minute; auto: only on a CUDA GPU",
    )
    peak_tflops: float | None = param(
        None, help="peak TFLOP/s of a device, to compute MFU; default: the GPU's peak, if known", gt=0
    )
    log_every: int = param(10, help="number of training steps between entries in metrics.jsonl", ge=1)
    evaluate_every: int = param(
        0,
        help="number of steps between evaluations, the first of which precedes training; 0: only after training",
        ge=0,
    )
    evaluate_sequences: int = param(
        0,
        help="number of sequences in each evaluation during training, always the same sequences; 0 means all of "
        "evaluation.sequences",
        ge=0,
    )
    keep_best: bool = param(
        False,
        help="whether to keep the model with the lowest held-out bound, in the objective's own order if it has one; "
        "--step best selects it",
    )
    save_every: int = param(500, help="number of training steps between checkpoints", ge=1)
    loggers: tuple[Any, ...] = components_param("logger", help="loggers in addition to metrics.jsonl")
    callbacks: tuple[Any, ...] = components_param(
        "callback", help="callbacks, such as additional metrics and early stopping"
    )
    algorithms: tuple[Any, ...] = components_param("algorithm", help="algorithms that change the training loop")
    keep_checkpoints: int = param(2, help="number of newest checkpoints to keep", ge=1)

    def __attrs_post_init__(self) -> None:
        if self.sharding != "none" and self.microbatch_size == "auto":
            raise ValueError(
                f'microbatch_size = "auto" does not work with sharding = "{self.sharding}"; set microbatch_size to a '
                f"number"
            )

        if self.keep_best and not self.evaluate_every:
            raise ValueError(
                "keep_best needs evaluations during training; set evaluate_every, or set keep_best = false"
            )

    def rows_at_once(self, ranks: int) -> int | Literal["auto"]:
        """Return the number of sequences in a rank's micro-batch, or "auto"."""
        rows = self.batch_size // ranks
        return "auto" if self.microbatch_size == "auto" else min(rows, self.microbatch_size or rows)

    @property
    def parts(self) -> tuple[Any, ...]:
        """The loggers, callbacks and algorithms."""
        return (*self.loggers, *self.callbacks, *self.algorithms)


@component
class EvaluationSpec:
    """Settings for held-out evaluation during and after training."""

    split: Literal["validation", "test"] = param("validation", help="held-out split to evaluate on")
    sequences: int = param(1024, help="maximum number of held-out sequences; 0 means all sequences", ge=0)
    mask_samples: int = param(4, help="number of masks to sample per sequence", ge=1)
    bound: Any = component_param("bound", "exact_k", help="estimator of the bound")
    batch_size: int = param(64, help="number of sequences per batch", ge=1)
    metrics: tuple[Any, ...] = components_param(
        "metric", help="additional metrics of the predictions or of generated texts"
    )
    texts: int = param(
        64,
        help="number of texts to generate for metrics of generated text; at most the number of held-out sequences",
        ge=1,
    )
    tasks: tuple[Any, ...] = components_param("task", help="tasks to evaluate after training")
    samples: int = param(3, help="number of generated texts to write to samples.txt after training", ge=0)

    def __attrs_post_init__(self) -> None:
        titles = [metric.title for metric in self.metrics]
        if twice := [title for title in titles if titles.count(title) > 1]:
            raise ValueError(f"metrics has {twice[0]!r} twice; remove one")
        if twice := [task.name for number, task in enumerate(self.tasks) if task in self.tasks[:number]]:
            raise ValueError(f"tasks has {twice[0]!r} twice; remove one, or change its parameters")


SECTIONS: dict[str, type] = {"data": DataSpec, "train": TrainSpec, "evaluation": EvaluationSpec}


class Key(NamedTuple):
    """A top-level key of an experiment: its type and default in words, and its description."""

    type_name: str
    default: str
    help: str


TOP_LEVEL = {
    "name": Key("str", "the file name", "name of the run, which is saved in runs/NAME"),
    "seed": Key("int", "17", "random seed for initialisation, data order, masks and dropout (≥ 0)"),
    "init_from": Key("str", "none", "folder of a finished run whose final weights are fine-tuned"),
    "requires": Key("list of str", "[]", "plugin packages that must be installed; determined from the components"),
    "extends": Key(
        "str | list of str",
        "[]",
        "experiments to inherit from: paths relative to this file, or names of shipped experiments",
    ),
}


def completed(section: str, table: Any, parts: Mapping[str, Any]) -> Any:
    """Return the table of a section, completed with `data.special_tokens`, whose default depends on other settings."""
    if section != "data" or not isinstance(table, dict):
        return table
    none = table.get("format") == "chat" or not getattr(parts["corpus"], "ends_documents", True)
    return ({"special_tokens": "none"} if none else {}) | table


# The kinds that every experiment uses, with any objective.
ALWAYS = frozenset({"corpus", "tokenizer", "objective", "sampler", "guidance", "optimizer", "schedule"})


@attrs.frozen(kw_only=True)
class Experiment:
    """A validated experiment, with one component for each kind that has a table, and three sections.

    `init_from` is the folder, relative to the working directory, of a finished run whose final weights initialise
    training, or None. `requires` lists the distributions of the plugins whose components the experiment uses.
    """

    name: str
    seed: int
    init_from: str | None = None
    requires: tuple[str, ...] = ()
    parts: Mapping[str, Any]
    data: DataSpec
    train: TrainSpec
    evaluation: EvaluationSpec

    @property
    def kinds(self) -> list[str]:
        """The kinds of component that this experiment uses, in the order of their tables."""
        return [kind for kind in TABLES if kind in ALWAYS or kind in self.parts["objective"].uses]

    def to_table(self) -> dict[str, Any]:
        """Return the experiment as a table with every parameter, which `from_table` reads back."""
        table: dict[str, Any] = {"name": self.name, "seed": self.seed}
        if self.init_from is not None:
            table["init_from"] = self.init_from
        if self.requires:
            table["requires"] = list(self.requires)
        for kind in self.kinds:
            table[kind] = unstructure(self.parts[kind])
        for section in SECTIONS:
            table[section] = unstructure(getattr(self, section))
        return table

    def to_toml(self) -> str:
        """Return the result of `to_table` as TOML."""
        import tomli_w

        return tomli_w.dumps(self.to_table())
