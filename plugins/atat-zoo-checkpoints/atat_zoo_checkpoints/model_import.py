"""Import of a published model as a run folder, without training."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from atat_zoo.experiment.experiment_file import from_overrides, overrides_as_table
from atat_zoo.experiment.runs import RunFolder, write_json, write_text
from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context, Zoo
from atat_zoo.system.atomic_files import check_name
from atat_zoo.system.environment import describe
from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.machine import needing_no_memory
from atat_zoo_checkpoints.published_model import Published

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from atat_zoo.data.tokenizers import TokenizerModel

_PROBED = 64  # number of tokens with which a tokenizer is tested
_NAMED = 3  # maximum number of mismatched weights that a message names
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # supported data types of weights


def import_model(
    model: str, out: Path, overrides: Sequence[str] = (), *, revision: str | None = None, overwrite: bool = False
) -> Model:
    """Create a run folder from a published model, for sampling, infilling and evaluation, and return the model.

    The run does not need the model's files, except the model's own code. For more training, set `init_from` to the run.

    Args:
        model: name on the hub, folder, or Lightning checkpoint.
        out: run folder.
        overrides: `key.path=value` pairs for the experiment, such as `data.length=256`. Without a `corpus`, each
            evaluation must name its text.
        revision: commit, tag or branch on the hub.
        overwrite: whether to replace an existing run once the new one is complete.

    Returns:
        The imported model.

    Raises:
        UserError: if no backbone can read the model, its files are inconsistent, or a run exists without `overwrite`.
    """
    check_name(out)
    # A component's name is short for a table that only has `use`.
    short = overrides_as_table(overrides)
    said = {kind: {"use": value} if isinstance(value, str) else value for kind, value in short.items()}
    if RunFolder(out).keeps(source := Path(model)) or (source.is_dir() and source.resolve() == out.resolve()):
        raise UserError(f"{clip(out)} is the folder of the model itself; choose a different folder for the run")
    published = Published(model, revision)
    with _understanding(published):
        table = {"name": out.resolve().name, **_reader(published, said).import_table(published, said)}
    experiment = from_overrides(table, overrides, "import", drop_unused=True)
    tokenizer = experiment.parts["tokenizer"].train(lambda: iter(()))
    refuse_unread(tokenizer, model)
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
            raise UserError(
                f"{out} already contains a run; pass --overwrite to replace it, or choose a different folder"
            )
        backbone = experiment.parts["backbone"]
        if backbone.lora_rank:
            raise UserError(
                "backbone.lora_rank: an import does not train LoRA matrices; leave lora_rank out, and set it in a "
                f"training run with init_from={out}"
            )
        if not backbone.built_with_weights:  # compare before allocating the memory that the settings require
            with _understanding(published), torch.device("meta"), needing_no_memory():
                backbone.imported(assemble(experiment, context), published)
        module = assemble(experiment, context).eval()
        # From now on, the weights come from the run.
        backbone = backbone.imported(module, published)
        experiment = attrs.evolve(experiment, parts={**experiment.parts, "backbone": backbone})
        made = Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=0)
        with folder.replacement() as new:
            made.save(new.model)
            own_text = experiment.parts["corpus"].name if "corpus" in said else None
            origin = {"model": model, "revision": revision, "corpus": own_text}
            described = {"seed": experiment.seed, "imported": origin, **describe(Zoo.load().plugins)}
            write_json(new.environment, described)
            write_text(new.resolved, experiment.to_toml())
    return made


@contextmanager
def _understanding(published: Published) -> Iterator[None]:
    """Raise a `UserError` in place of any exception that unexpected settings cause."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise UserError(
            f"{published.model} has settings in an unknown format ({type(error).__name__}: {clip(error)}); "
            "download the model again, or choose a different model"
        ) from None


def _reader(published: Published, said: dict[str, Any]) -> Any:
    """Return the backbone class for a model: the one in `backbone.use`, or the only one that recognises the model."""
    zoo, named = Zoo.load(), said.get("backbone", {}).get("use")
    known = [zoo.component("backbone", name) for name in ([str(named)] if named else zoo.names("backbone"))]
    able: list[Any] = [cls for cls in known if hasattr(cls, "import_table")]
    if named:
        if not able:
            raise UserError(f"backbone.use: {named!r} cannot read published models; leave backbone.use out")
        return able[0]
    reading = [cls for cls in able if cls.reads(published.config)]
    if len(reading) == 1:
        return reading[0]
    kind = published.config.get("model_type")
    what = f"{published.model} (model_type {clip(repr(kind))})" if kind else published.model
    if reading:
        names = ", ".join(cls.name for cls in reading)
        raise UserError(f"several backbones recognise {what}: {names}; choose one with backbone.use=NAME")
    names = ", ".join(cls.name for cls in able) or "none is installed"
    raise UserError(
        f"no backbone recognises {what} (backbones that read models: {names}); install a package with one, such as "
        "atat-zoo-transformers, or choose a backbone with backbone.use=NAME"
    )


def fill(own: Mapping[str, Tensor], constants: Mapping[str, Tensor], published: Published) -> None:
    """Copy the weights of a published model into a network.

    Args:
        own: dict from published name to the network's weight, as a view in the published shape. On the meta device,
            only names, shapes and data types are compared.
        constants: dict from published name to a value that the network computes; if the model stores the value, it
            must agree within rounding.
        published: the model.

    Raises:
        UserError: if weights are missing, unknown, not finite, of a wrong shape or type, or differ from a constant.
    """
    weights = published.weights
    wrong = [f"{name} is missing" for name in own if name not in weights]
    wrong += [f"{name} is unknown" for name in weights if name not in own and name not in constants]
    for name, tensor in own.items() if not wrong else ():
        found = weights[name]
        if found.shape != tensor.shape:
            wrong.append(f"{name} has the shape {list(found.shape)} instead of {list(tensor.shape)}")
        elif found.dtype not in FLOATS:
            wrong.append(f"{name} has the unsupported type {found.dtype}")
    refuse_other(wrong, published.model)
    if any(tensor.is_meta for tensor in own.values()):
        return
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
            refuse_not_finite(name, tensor, published.model)
    for name in constants.keys() & weights.keys():
        found, constant = weights[name].float(), constants[name].float()
        if found.shape != constant.shape or not torch.allclose(found, constant, rtol=1e-4, atol=1e-7):
            wrong.append(f"{name} differs from its computed value")
    refuse_other(wrong, published.model)


def refuse_other(wrong: Sequence[str], model: str) -> None:
    """Raise a `UserError` with the descriptions in `wrong` of weights that do not match a model's settings, if any."""
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise UserError(
            f"the weights of {model} do not match its settings: {clip('; '.join(wrong[:_NAMED]))}{more}; "
            "download the model again, or correct the settings with backbone.KEY=VALUE"
        )


def refuse_without_row(context: Context, rows: int, model: str) -> None:
    """Raise a `UserError` if a model's embedding has fewer rows than its tokenizer has tokens."""
    V, library = context.vocabulary_size, context.tokenizer and context.tokenizer.library
    if rows < V:
        names = [repr(library.id_to_token(i)) for i in range(rows, V)] if library else []
        named = f" (the first without a row is {clip(names[0], 60)})" if names else ""
        raise UserError(
            f"{model}: the embedding has {rows} rows, but the tokenizer has {V} tokens{named}; use the model's own "
            f"tokenizer, or an embedding with {V} rows (in transformers, `resize_token_embeddings({V})`)"
        )


def refuse_unread(tokenizer: TokenizerModel, model: str) -> None:
    """Raise a `UserError` if a tokenizer encodes the text of each of up to 64 of its own tokens as unknown."""
    own = np.flatnonzero(tokenizer.byte_counts())
    texts = [tokenizer.decode([int(i)]) for i in own[:: 1 + len(own) // _PROBED]]
    if not any(i != tokenizer.unknown for ids in tokenizer.encode_batch(texts) for i in ids):
        raise UserError(
            f"the tokenizer of {model} has {tokenizer.vocabulary_size} tokens, but encodes each tested one as unknown; "
            "download its files again, or choose a different tokenizer with tokenizer.model or tokenizer.path"
        )


def refuse_not_finite(name: str, weight: Tensor, model: str) -> None:
    """Raise a `UserError` if a published weight is not finite in the network's data type."""
    if count := int((~weight.isfinite()).sum()):
        many = f"{count:,} values that are" if count > 1 else "1 value that is"
        half = weight.dtype == torch.float16
        remedy = 'in float16; set backbone.dtype="bfloat16", or ' if half else "; "
        raise UserError(f"{model}: {name} has {many} not finite{' ' * half}{remedy}download the model again")
