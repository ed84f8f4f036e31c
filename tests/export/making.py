"""Small runs of every form that is exported, without a training."""

import numpy as np

from atat_zoo.data.neighbours import CountTable
from atat_zoo.run import RunFolder, write_text
from tests.model.making import TABLE, tiny_model

BACKBONE = TABLE["backbone"]
COUNTED = BACKBONE | {"neighbours": 2, "tied": True, "output_bias": "zero", "local_heads": 1}
TIMED = BACKBONE | {"time_conditioning": True, "mlp_ratio": 2.5}
TEXT = np.random.default_rng(3).zipf(1.3, (60, 24)) % 258
FORMS = {
    "mdlm": {},
    "counted": {"backbone": COUNTED},
    "timed": {"backbone": TIMED, "noise": "cosine"},
    "linear": {"backbone": TIMED},
    "adaptive": {"objective": "adaptive", "without": ("masking",)},
    "sedd": {"objective": "sedd", "without": ("masking", "estimator")},
    "sets": {"objective": "sets", "backbone": COUNTED, "sampler": "strided", "without": ("masking", "estimator")},
    "strided": {
        "objective": {"use": "strided", "stride": 4},
        "sampler": {"use": "strided", "stride": 4},
        "without": ("masking", "estimator"),
    },
    "autoregressive": {
        "objective": "autoregressive",
        "backbone": COUNTED,
        "sampler": "left_to_right",
        "without": ("masking", "estimator"),
    },
}


def model_of(form, **changes):
    """Return a model of a form."""
    return tiny_model(scale=0.3, count_table=lambda: CountTable.count([TEXT], 258), **FORMS[form] | changes)


def run_of(model, folder):
    """Write a run folder of a model, as a training does; returns it."""
    run = RunFolder(folder)
    model.save(run.model)
    write_text(run.resolved, model.experiment.to_toml())
    return run
