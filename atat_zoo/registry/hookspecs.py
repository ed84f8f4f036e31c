"""The kinds of components, and the hooks with which packages add components: one hook per kind, which returns classes.

A plugin is a module that an entry point of the group `atat_zoo` names:

    from atat_zoo.registry import hookimpl

    CONTRACT = 2  # the version of the interfaces that its components implement; 1 if missing

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
    """A kind of component."""

    name: str  # in the singular, as in `[masking]` and `atat_zoo_masking`
    summary: str
    room: str  # within atat_zoo: the module or package of its contract and its built-in parts
    default: str | None = None  # used when an experiment has no table of this kind; None where none has one

    @property
    def module(self) -> str:
        """The name of the module that contains the built-in components of the kind."""
        return f"{PROJECT}.{self.room}"


_KINDS = (
    Kind("corpus", "Training and held-out text.", "data.corpora", "sotu"),
    Kind("boundary", "How plain text is divided into documents.", "data.corpora.boundaries"),
    Kind("detokenizer", "Restores ordinary text from a benchmark's tokens.", "data.corpora.detokenizers"),
    Kind("tokenizer", "Text to token ids and back.", "data.tokenizers", "bpe"),
    Kind("transform", "Transforms or filters training sequences.", "data.transforms"),
    Kind("backbone", "The denoising network.", "modeling.backbones", "dit"),
    Kind("noise", "The noise schedule α(t).", "modeling.noise", "linear"),
    Kind("mask_rates", "The distribution of mask rates during training.", "modeling.mask_rates", "noise"),
    Kind("objective", "The training loss and the reported bound on the NLL.", "modeling.objectives", "mdlm"),
    Kind(
        "position_sets",
        "The sets of positions that a set-causal model predicts at once.",
        "modeling.position_sets",
        "strided",
    ),
    Kind("bound", "How the bound is estimated on held-out text.", "modeling.bounds"),
    Kind("estimator", "Estimates the importance of each token, in [0, 1].", "modeling.estimators", "uniform"),
    Kind("masking", "Masking probabilities from importance and a mask rate.", "modeling.masking", "uniform"),
    Kind("position_bias", "Position-dependent bias of the masking `position`.", "modeling.masking.position_bias"),
    Kind("mask_drawing", "Samples a mask from masking probabilities.", "modeling.masking.mask_drawing", "bernoulli"),
    Kind(
        "curriculum", "Loss weights that change from easy to hard tokens during training.", "modeling.curricula", "none"
    ),
    Kind("target", "The training target of the importance estimator.", "modeling.targets", "difficulty"),
    Kind("uncertainty", "Uncertainty of a prediction, in [0, 1].", "modeling.uncertainty"),
    Kind(
        "sampler",
        "Generates text: decoding order, tokens per step, remasking, stopping rule and token sampling.",
        "generation.samplers",
        "ancestral",
    ),
    Kind("order", "Decoding order: which masked position comes first.", "generation.samplers.order"),
    Kind("tokens_per_step", "Number of tokens unmasked per decoding step.", "generation.samplers.tokens_per_step"),
    Kind("remasking", "Remasking: which sampled tokens are masked again.", "generation.samplers.remasking"),
    Kind(
        "stopping_rule",
        "Stopping rule: when to fill all remaining positions in one step.",
        "generation.samplers.stopping_rule",
    ),
    Kind("token_sampling", "Token sampling from log-probabilities.", "generation.samplers.token_sampling"),
    Kind(
        "guidance",
        "Guidance: changes the model's distribution towards given words, a class or a prompt.",
        "generation.guidance",
        "none",
    ),
    Kind("classifier", "Classifier of texts, for classifier guidance.", "generation.classifiers"),
    Kind("optimizer", "The optimizer.", "training.optimizers", "adamw"),
    Kind("schedule", "The learning-rate schedule.", "training.schedules", "constant"),
    Kind("logger", "Where training metrics are logged.", "training.loggers"),
    Kind("callback", "Additional training metrics, and early stopping.", "training.callbacks"),
    Kind("algorithm", "Changes to the training loop.", "training.algorithms"),
    Kind("metric", "A metric of the predictions at masked tokens or of generated text.", "evaluation.metrics"),
    Kind("task", "A held-out evaluation task with scores.", "evaluation.tasks"),
    Kind("judge", "A judge model that scores generated text.", "evaluation.judges"),
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
