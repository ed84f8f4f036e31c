"""The sections of an experiment besides its parts: `[data]`, `[train]`, `[evaluation]`."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from atat_zoo.registry import TABLES, component, param, part, parts
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import Problem

# Keys of [data] that determine the shards, and their names in a manifest, on which the names of folders depend.
RECORDED = {"special_tokens": "special", "packing": "rows", "format": "form"}


@component
class DataSpec:
    """How text becomes sequences, shards and a stream."""

    root: str = param("data", help="folder of the built shards")
    length: int = param(128, help="L, tokens in a sequence, special tokens included", ge=1)
    special_tokens: Literal["none", "document", "sequence", "both"] = param(
        "document",
        help="BOS/EOS: none; EOS after every document; [BOS] L−2 tokens [EOS] in every sequence; or both. By default "
        "none for dialogues, whose template has them, and for the corpora sotu and text8",
    )
    format: Literal["text", "chat"] = param(
        "text", help="of the corpus: text, or dialogues, of which the answers are learned and all else is given"
    )
    packing: Literal["packed", "document"] = param(
        "packed",
        help="sequences of running text, or of one document each: its first tokens, then padding; of dialogues several "
        "whole ones that do not see each other, or one, filled with EOS, which counts as answer",
    )
    remainder: Literal["drop", "pad"] = param(
        "drop", help="the tokens left over at the end of a packed split: dropped, or padded to a full sequence"
    )
    sequences: int | None = param(
        None, help="maximum number of training sequences, to train on part of a corpus; all when absent", ge=1
    )
    sequences_per_member: int = param(256, help="sequences in one member of a shard", ge=1)
    sequences_per_shard: int = param(
        4096, help="sequences in one shard at most; fewer when there are too few for the lanes", ge=1
    )
    dtype: Literal["auto", "uint16", "uint32"] = param("auto", help="type of a stored token; auto takes the smallest")
    lanes: int = param(8, help="C: sample n of the stream comes from lane n mod C; ranks must divide it", ge=1)
    shuffled_shards: int = param(1, help="shards whose rows a lane shuffles together; 1: one shard after another", ge=1)
    on_corrupt: Literal["error", "skip"] = param(
        "error", help="a damaged training shard is an error, or the stream leaves out its damaged members and counts"
    )
    transforms: tuple[Any, ...] = parts(
        "transform", help="changes and refusals of training sequences, one after the other"
    )
    workers: int = param(0, help="loader processes per rank; the order does not depend on it", ge=0, le=1024)

    def __attrs_post_init__(self) -> None:
        if self.sequences is not None and self.sequences < self.lanes:
            raise ValueError(
                f"sequences = {self.sequences} is fewer than lanes = {self.lanes}; raise the one or lower the other"
            )

    @property
    def recorded(self) -> dict[str, Any]:
        """What shards record of these keys, by the names that their manifest has."""
        return {stored: getattr(self, key) for key, stored in RECORDED.items()}

    def check(self, experiment: "Experiment") -> Iterator[Problem]:
        """Yield the problems of dialogues: what is of running text, and parts that read a row as a whole."""
        if self.format == "text":
            return
        parts, one = experiment.parts, 'set data.packing = "document"'
        objective, estimator = parts["objective"], parts["estimator"]
        if not parts["corpus"].holds_dialogues:
            known = "take files or huggingface, or shards that were built from them"
            yield Problem(
                "corpus", f'{parts["corpus"].name!r} has no dialogues, which data.format = "chat" reads; {known}'
            )
        if self.special_tokens != "none":
            said = f'"{self.special_tokens}" is of running text, and a dialogue has the special tokens of its template'
            yield Problem("data.special_tokens", f'{said}; set it to "none"')
        if self.dtype == "uint16":
            yield Problem("data.dtype", 'dialogues are stored as "uint32"; leave it at "auto"')
        if self.transforms:
            yield Problem(
                "data.transforms", "they change and refuse running text, and would cut answers; leave them out"
            )
        for metric in experiment.evaluation.metrics:
            if metric.reads == "texts":
                said = f"{metric.title!r} is of texts that a model writes by itself, and this one answers"
                yield Problem("evaluation.metrics", f'{said}; leave it out, or take the task "answers"')
        if self.packing != "packed":
            return
        if not objective.separates_documents:
            said = f"objective {objective.name!r} reads a row as a whole, and packed dialogues must not see each other"
            yield Problem("data.packing", f"{said}; {one}")
        if parts["backbone"].both_ways_only or getattr(parts["backbone"], "shift", False):
            said = f"backbone {parts['backbone'].name!r}, as it is set, reads a row as a whole, both ways"
            yield Problem("data.packing", f"{said}; {one}")
        if parts["backbone"].ngram_prior:
            yield Problem(
                "backbone.ngram_prior", f"they may be of another dialogue in the same row; set it to 0, or {one}"
            )
        if "estimator" in objective.uses and estimator.learns:
            yield Problem("data.packing", f"estimator {estimator.name!r} reads the answers of a row together; {one}")


@component
class TrainSpec:
    """How the parts are trained."""

    steps: int = param(1000, help="optimizer steps", ge=1)
    batch_size: int = param(64, help="sequences in a step, over all ranks", ge=1)
    microbatch_size: int | Literal["auto"] | None = param(
        None,
        help="sequences computed at once on a rank; all when absent; auto, on a GPU: half as many whenever its memory "
        "does not suffice",
        ge=1,
    )
    max_grad_norm: float = param(1.0, help="maximum gradient norm; 0 disables clipping", ge=0)
    ema_decay: float = param(0.0, help="decay of the moving average of the weights; 0 for no average", ge=0, lt=1)
    precision: Literal["auto", "fp32", "bf16"] = param(
        "auto", help="auto: bf16 where the GPU or the CPU has the instructions, else fp32"
    )
    device: str = param("auto", help="cpu, gpu, or mps for Apple's; auto: a GPU if there is one that has float64")
    sharding: Literal["none", "full"] = param(
        "none",
        help="what is sharded over the ranks: none, so that each has everything (DDP), or full: weights, gradients and "
        "the optimizer's state (FSDP)",
    )
    compile: Literal["auto"] | bool = param(
        False,
        help="compile the backbone with torch.compile, which takes a minute; auto: on a CUDA GPU, and not on a CPU",
    )
    peak_tflops: float | None = param(
        None, help="most TFLOP/s of a device, for its utilisation; that of the GPU, if known, when absent", gt=0
    )
    log_every: int = param(10, help="steps between two lines of metrics.jsonl", ge=1)
    evaluate_every: int = param(
        0, help="steps between two evaluations, the first one before the training; 0 evaluates at the end only", ge=0
    )
    evaluate_sequences: int = param(
        0, help="of evaluation.sequences, how many such an evaluation measures, always the same; 0 for all", ge=0
    )
    keep_best: bool = param(
        False, help="keep the model whose held-out bound is the lowest of all such evaluations, for --step best"
    )
    save_every: int = param(500, help="steps between two checkpoints", ge=1)
    loggers: tuple[Any, ...] = parts("logger", help="destinations of the curves besides metrics.jsonl")
    callbacks: tuple[Any, ...] = parts("callback", help="additional measurements, and early stopping")
    algorithms: tuple[Any, ...] = parts("algorithm", help="changes to the training loop itself")
    keep_checkpoints: int = param(2, help="number of checkpoints that are not deleted, the newest ones", ge=1)

    def __attrs_post_init__(self) -> None:
        if self.sharding != "none" and self.microbatch_size == "auto":
            raise ValueError(
                f'microbatch_size = "auto" would begin a batch again on one rank alone, and with sharding = '
                f'"{self.sharding}" the ranks compute it together; choose a number'
            )

        if self.keep_best and not self.evaluate_every:
            raise ValueError("keep_best goes by evaluations on the way; set evaluate_every, or keep_best = false")

    def rows_at_once(self, ranks: int) -> int | Literal["auto"]:
        """Return the sequences of a micro-batch."""
        rows = self.batch_size // ranks
        return "auto" if self.microbatch_size == "auto" else min(rows, self.microbatch_size or rows)

    @property
    def parts(self) -> tuple[Any, ...]:
        """The loggers, callbacks and algorithms."""
        return (*self.loggers, *self.callbacks, *self.algorithms)


@component
class EvaluationSpec:
    """How the model is evaluated, during the training and after it."""

    split: Literal["validation", "test"] = param("validation", help="held-out split")
    sequences: int = param(1024, help="maximum number of held-out sequences; 0 for all", ge=0)
    mask_samples: int = param(4, help="masks drawn for every sequence", ge=1)
    bound: Any = part("bound", "exact_k", help="how the bound is estimated")
    batch_size: int = param(64, help="sequences evaluated at once", ge=1)
    metrics: tuple[Any, ...] = parts(
        "metric", help="further numbers of the predictions, or of texts that the model writes"
    )
    texts: int = param(
        64, help="texts written where metrics read texts; at most as many as there are held-out sequences", ge=1
    )
    tasks: tuple[Any, ...] = parts("task", help="held-out problems that are measured after the training")
    samples: int = param(3, help="texts written to samples.txt after the training", ge=0)

    def __attrs_post_init__(self) -> None:
        titles = [metric.title for metric in self.metrics]
        if twice := [title for title in titles if titles.count(title) > 1]:
            raise ValueError(f"metrics has {twice[0]!r} twice; leave one out")
        if twice := [task.name for number, task in enumerate(self.tasks) if task in self.tasks[:number]]:
            raise ValueError(f"tasks has {twice[0]!r} twice; leave one out, or change its parameters")


SECTIONS: dict[str, type] = {"data": DataSpec, "train": TrainSpec, "evaluation": EvaluationSpec}


def completed(section: str, table: Any, parts: Mapping[str, Any]) -> Any:
    """Return the table of a section with the default that depends on other settings, `data.special_tokens`."""
    if section != "data" or not isinstance(table, dict):
        return table
    none = table.get("format") == "chat" or not getattr(parts["corpus"], "ends_documents", True)
    return ({"special_tokens": "none"} if none else {}) | table


# The kinds that every experiment uses, with any objective.
ALWAYS = frozenset({"corpus", "tokenizer", "objective", "sampler", "guidance", "optimizer", "schedule"})


@attrs.frozen(kw_only=True)
class Experiment:
    """A validated experiment: one specification per kind, and the three sections.

    `init_from` is the folder of a finished run whose final weights initialise the training, relative to the working
    directory, or None. `requires` has the distributions of the plugins whose parts it uses.
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
        """The kinds whose parts this experiment uses, in the order of their tables."""
        return [kind for kind in TABLES if kind in ALWAYS or kind in self.parts["objective"].uses]

    def to_table(self) -> dict[str, Any]:
        """Return the experiment as a table with every parameter in full; `from_table` reads it back."""
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
        """Return `to_table` as TOML."""
        import tomli_w

        return tomli_w.dumps(self.to_table())
