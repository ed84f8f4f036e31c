"""The kinds of parts, and the hooks with which packages add parts: one hook per kind, which returns classes.

A plugin is a module that an entry point of the group `atat_zoo` names:

    from atat_zoo.registry import hookimpl

    CONTRACT = 2  # the version of the contracts that its parts are written for: 1 where it says nothing

    @hookimpl
    def atat_zoo_masking():
        from my_package.strategies import Spiral
        return [Spiral]
"""

from typing import NamedTuple

import pluggy

PROJECT = "atat_zoo"
CONTRACT = 2  # raised by a change of any kind's contract that breaks a part which keeps to it: see plugins/README.md
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Kind(NamedTuple):
    """A kind of part."""

    name: str  # in the singular, as in `[masking]` and `atat_zoo_masking`
    summary: str
    room: str  # within atat_zoo: the module or package of its contract and its built-in parts
    default: str | None = None  # used when an experiment has no table of this kind; None where none has one

    @property
    def module(self) -> str:
        """The name by which its room is imported."""
        return f"{PROJECT}.{self.room}"


_KINDS = (
    Kind("corpus", "Text to learn from, as documents per split.", "data.corpora", "sotu"),
    Kind("boundary", "Where a document ends in a file of plain text.", "data.corpora.boundaries"),
    Kind("detokenizer", "From the tokens of a benchmark to ordinary text.", "data.corpora.detokenizers"),
    Kind("tokenizer", "Text to token ids and back.", "data.tokenizers", "bpe"),
    Kind("transform", "What becomes of a training sequence before the batch.", "data.transforms"),
    Kind("backbone", "The network that reads noisy tokens.", "modeling.backbones", "dit"),
    Kind("noise", "The noise schedule α(t).", "modeling.noise", "linear"),
    Kind("mask_rates", "Which mask rates a training sees, and how often.", "modeling.mask_rates", "noise"),
    Kind("objective", "The training loss, and the bound that is reported.", "modeling.objectives", "mdlm"),
    Kind("position_sets", "In which sets a text is read and predicted.", "modeling.position_sets", "strided"),
    Kind("bound", "How the bound is estimated on held-out text.", "modeling.bounds"),
    Kind("estimator", "Which tokens are hard: importance in [0, 1] per token.", "modeling.estimators", "uniform"),
    Kind("masking", "From importance and a rate to masking probabilities.", "modeling.masking", "uniform"),
    Kind("position_bias", "Where in a sequence position masking masks more.", "modeling.masking.position_bias"),
    Kind("mask_drawing", "From masking probabilities to a mask.", "modeling.masking.mask_drawing", "bernoulli"),
    Kind("curriculum", "Loss weights from easy to hard as training goes on.", "modeling.curricula", "none"),
    Kind("target", "What the importance estimator learns to predict.", "modeling.targets", "difficulty"),
    Kind("uncertainty", "How unsure a prediction is, in [0, 1].", "modeling.uncertainty"),
    Kind(
        "sampler",
        "From masks to text: order, tokens per step, remasking, stopping rule and token sampling.",
        "generation.samplers",
        "ancestral",
    ),
    Kind("order", "Which masked position comes first.", "generation.samplers.order"),
    Kind("tokens_per_step", "How many positions are unmasked in a step.", "generation.samplers.tokens_per_step"),
    Kind("remasking", "Which drawn tokens are masked again.", "generation.samplers.remasking"),
    Kind("stopping_rule", "When the rest is filled in one draw.", "generation.samplers.stopping_rule"),
    Kind("token_sampling", "From log-probabilities to a token.", "generation.samplers.token_sampling"),
    Kind("guidance", "What a model is made to write about.", "generation.guidance", "none"),
    Kind("classifier", "Scores the class of a text, for guidance.", "generation.classifiers"),
    Kind("optimizer", "How the gradients update the weights.", "training.optimizers", "adamw"),
    Kind("schedule", "The learning rate at each step.", "training.schedules", "constant"),
    Kind("logger", "Destinations of the training curves.", "training.loggers"),
    Kind("callback", "Additional measurements in a training, and early stopping.", "training.callbacks"),
    Kind("algorithm", "Changes to the training loop itself.", "training.algorithms"),
    Kind(
        "metric", "A number of the predictions of masked tokens, or of texts that a model writes.", "evaluation.metrics"
    ),
    Kind("task", "A held-out problem with scores, on a finished model.", "evaluation.tasks"),
    Kind("judge", "Scores text that a model wrote.", "evaluation.judges"),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}

# The kinds with a table in an experiment, and the part that is used when the table is absent.
TABLES: dict[str, str] = {kind.name: kind.default for kind in KINDS.values() if kind.default is not None}


def hook(kind: str) -> str:
    """Return the name of a kind's hook."""
    return f"{PROJECT}_{kind}"


@hookspec
def _specification() -> list[type]:
    raise NotImplementedError("pluggy calls the plugins' functions of this name")


# The hook specifications, one for each kind: `atat_zoo_masking() -> list[type]` and so on.
Hooks = type("Hooks", (), {hook(kind): staticmethod(_specification) for kind in KINDS})
