"""From a model to a run folder without a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from atat_zoo.errors import UserError
from atat_zoo.experiment.experiment_file import from_overrides
from atat_zoo.model import Model
from atat_zoo.objectives.assembly import assemble
from atat_zoo.registry import Context, Zoo
from atat_zoo.run import RunFolder, write_json, write_text
from atat_zoo.run.environment import describe
from atat_zoo_transformers.source import config_of, longest_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LENGTH = 512  # of a run's sequences, or fewer, if the model reads no more


def import_model(
    model: str, out: Path, overrides: Sequence[str] = (), *, revision: str | None = None, overwrite: bool = False
) -> Model:
    """Make a run folder of a model: what samples, fills, evaluates and judges a run does so with it at once.

    The run needs the model no longer, and a training continues from it by `init_from`.

    Args:
        model: name on the hub, or folder.
        out: the run folder.
        overrides: `key.path=value` of its experiment, such as `data.length=256` or `tokenizer.model=gpt2`.
        revision: commit, tag or branch of the hub.
        overwrite: whether to replace a run that is there.

    Raises:
        UserError: when the model cannot be read or is no language model, or there is a run already.
    """
    # RoBERTa's 514 positions are for 512 tokens.
    length = 1 << ((longest_of(config_of(model, revision)) or _LENGTH).bit_length() - 1)
    of = {"use": "transformers", "model": model} | ({"revision": revision} if revision else {})
    # The revision is of this model, and not of another whose tokenizer it takes.
    text = {"use": "transformers"} if any(key.startswith("tokenizer.model=") for key in overrides) else of
    table: dict[str, Any] = {"name": out.resolve().name, "backbone": of, "tokenizer": text}
    table["data"] = {"length": min(length, _LENGTH)}
    experiment = from_overrides(table, overrides, "import")
    tokenizer = experiment.parts["tokenizer"].train(lambda: iter(()))
    ends = (tokenizer.bos, tokenizer.eos)
    unsaid = not any(key.startswith("data.special") for key in overrides)
    if unsaid and None not in ends and experiment.parts["backbone"].mask_id not in ends:
        experiment = from_overrides(experiment.to_table(), ['data.special="sequence"'], "import")
    context = Context(
        vocabulary_size=tokenizer.vocabulary_size,
        length=experiment.data.length,
        counts=np.ones(tokenizer.vocabulary_size, np.int64),
        seed=experiment.seed,
        tokenizer=tokenizer,
    )
    folder = RunFolder(out)
    with folder.lock():
        if folder.exists and not overwrite:
            raise UserError(f"{out} has a run already; replace it with --overwrite, or choose another folder")
        module = assemble(experiment, context).eval()
        # Its weights are those of the run from now on.
        backbone = attrs.evolve(experiment.parts["backbone"], pretrained=False)
        experiment = attrs.evolve(experiment, parts={**experiment.parts, "backbone": backbone})
        made = Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=0)
        folder.clear()
        made.save(folder.model)
        write_json(folder.environment, {"seed": experiment.seed, **describe(Zoo.load().plugins)})
        write_text(folder.resolved, experiment.to_toml())
    return made
