"""Small models of every way of reading a text, without a training, and run folders of them."""

import numpy as np

from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.experiment.runs import RunFolder, write_text
from tests.generation.making import TABLE, L, tiny_model

V = 258
CAUSAL = "autoregressive"
BACKBONE = TABLE["backbone"]
COUNTED = BACKBONE | {"ngram_prior": 2, "tied": True, "output_bias": "zero", "local_heads": 1}
TIMED = BACKBONE | {"time_conditioning": True, "mlp_ratio": 2.5}
TEXT = np.random.default_rng(3).zipf(1.3, (60, L)) % V
WITHOUT = ("masking", "estimator")
FORMS = {
    "mdlm": {},
    "counted": {"backbone": COUNTED},
    "timed": {"backbone": TIMED, "noise": "cosine"},
    "linear": {"backbone": TIMED},
    "adaptive": {"objective": "adaptive", "without": ("masking",)},
    "sedd": {"objective": "sedd", "without": WITHOUT},
    "sets": {"objective": "set_causal", "backbone": COUNTED, "sampler": "strided", "without": WITHOUT},
    "strided": {
        "objective": {"use": "strided_causal", "stride": 4},
        "sampler": {"use": "strided", "stride": 4},
        "without": WITHOUT,
    },
    CAUSAL: {"objective": CAUSAL, "backbone": COUNTED, "sampler": "left_to_right", "without": WITHOUT},
    "block": {"objective": {"use": "block", "block_size": 4}, "sampler": "semi_autoregressive", "without": WITHOUT},
}


def model_of(form, **changes):
    """Return a model of a form."""
    return tiny_model(scale=0.3, ngram_prior=lambda: NGramPrior.count([TEXT], V), **FORMS[form] | changes)


def run_of(model, folder):
    """Write a run folder of a model, as a training does; returns it."""
    run = RunFolder(folder)
    model.save(run.model)
    write_text(run.resolved, model.experiment.to_toml())
    return run
