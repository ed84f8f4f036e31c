"""A small model that has learned nothing, for the tests of a package."""

from pathlib import Path

from atat_zoo.data import Split
from atat_zoo.experiment import Experiment
from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context


def untrained(experiment: Experiment, run: Path | None = None, *, split: Split | None = None) -> Model:
    """Return the model of an experiment before training; with `run`, also save it as a finished run in this folder.

    The tokenizer is trained on a split of the experiment's corpus, by default on no text.
    """
    corpus = experiment.parts["corpus"]
    tokenizer = experiment.parts["tokenizer"].train(lambda: corpus.documents(split) if split else iter(()))
    context = Context(vocabulary_size=tokenizer.vocabulary_size, length=experiment.data.length, tokenizer=tokenizer)
    module = assemble(experiment, context).eval()
    model = Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=0)
    if run is not None:
        model.save(run / "model")
        (run / "resolved.toml").write_text(experiment.to_toml(), encoding="utf-8")
    return model
