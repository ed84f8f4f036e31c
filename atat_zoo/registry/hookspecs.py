"""The kinds of component, and one hook per kind, in which a plugin returns the classes of its components.

A plugin is a module that an entry point in the group `atat_zoo` refers to:

    from atat_zoo.registry import hookimpl

    CONTRACT = 2  # the version of the interfaces that the components implement; 1 if missing

    @hookimpl
    def atat_zoo_masking():
        from my_package.strategies import Spiral
        return [Spiral]
"""

from typing import NamedTuple

import pluggy

PROJECT = "atat_zoo"
CONTRACT = 2  # raised when a change in any kind's contract breaks components that follow it: see plugins/README.md
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Kind(NamedTuple):
    """A kind of component: its name, summary, module, and the component that an experiment uses by default."""

    name: str  # in the singular, as in `[masking]` and `atat_zoo_masking`
    summary: str
    room: str  # within atat_zoo: the module or package with its contract and its built-in components
    default: str | None = None  # used if an experiment has no table of this kind; None if the kind has no table

    @property
    def module(self) -> str:
        """The name of the module or package that contains the built-in components of the kind."""
        return f"{PROJECT}.{self.room}"


_KINDS = (
    Kind("corpus", "Training and held-out text.", "data.corpora", "sotu"),
    Kind("boundary", "Divides plain text into documents.", "data.corpora.boundaries"),
    Kind("detokenizer", "Restores ordinary text from a benchmark's tokens.", "data.corpora.detokenizers"),
    Kind("tokenizer", "Converts text to token ids and back.", "data.tokenizers", "bpe"),
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
    Kind("bound", "Estimates the bound on the NLL of held-out text.", "modeling.bounds"),
    Kind("estimator", "Estimates the importance of each token, in [0, 1].", "modeling.estimators", "uniform"),
    Kind("masking", "Computes masking probabilities from importance and a mask rate.", "modeling.masking", "uniform"),
    Kind("position_bias", "The position-dependent bias of the masking `position`.", "modeling.masking.position_bias"),
    Kind("mask_drawing", "Samples a mask from masking probabilities.", "modeling.masking.mask_drawing", "bernoulli"),
    Kind("curriculum", "Weights the loss of each token, for example easy tokens first.", "modeling.curricula", "none"),
    Kind("target", "The training target of the importance estimator.", "modeling.targets", "difficulty"),
    Kind("uncertainty", "The uncertainty of a prediction, in [0, 1].", "modeling.uncertainty"),
    Kind(
        "sampler",
        "Generates text: combines a decoding order, tokens per step, remasking, a stopping rule and token sampling.",
        "generation.samplers",
        "ancestral",
    ),
    Kind("order", "The decoding order: which masked positions come first.", "generation.samplers.order"),
    Kind("tokens_per_step", "The number of tokens unmasked per decoding step.", "generation.samplers.tokens_per_step"),
    Kind("remasking", "Chooses the sampled tokens that are masked again.", "generation.samplers.remasking"),
    Kind(
        "stopping_rule",
        "Decides when to fill all remaining masks in one step.",
        "generation.samplers.stopping_rule",
    ),
    Kind("token_sampling", "Samples tokens from log-probabilities.", "generation.samplers.token_sampling"),
    Kind(
        "guidance",
        "Guides the model's distribution towards given words, a class or a prompt.",
        "generation.guidance",
        "none",
    ),
    Kind("classifier", "A classifier of texts, for classifier guidance.", "generation.classifiers"),
    Kind("optimizer", "The optimizer.", "training.optimizers", "adamw"),
    Kind("schedule", "The learning-rate schedule.", "training.schedules", "constant"),
    Kind("logger", "Logs training metrics.", "training.loggers"),
    Kind("callback", "Adds training metrics, or stops training early.", "training.callbacks"),
    Kind("algorithm", "Changes the training loop.", "training.algorithms"),
    Kind("metric", "A metric of the predictions at masked tokens or of generated text.", "evaluation.metrics"),
    Kind("task", "An evaluation of the trained model, such as a benchmark.", "evaluation.tasks"),
    Kind("judge", "A judge model that scores generated text.", "evaluation.judges"),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}

# The kinds with a table in an experiment, and the component that is used if the table is absent.
TABLES: dict[str, str] = {kind.name: kind.default for kind in KINDS.values() if kind.default is not None}


def hook(kind: str) -> str:
    """Return the name of a kind's hook."""
    return f"{PROJECT}_{kind}"


@hookspec
def _specification() -> list[type]:
    raise NotImplementedError("pluggy calls the functions with this name in plugins")


# The hook specifications, one for each kind: `atat_zoo_masking() -> list[type]` and so on.
Hooks = type("Hooks", (), {hook(kind): staticmethod(_specification) for kind in KINDS})
