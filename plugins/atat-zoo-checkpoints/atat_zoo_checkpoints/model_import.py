"""From a published model to a run folder, without a training."""

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

_PROBED = 64  # tokens that a tokenizer is asked to read
_NAMED = 3  # of the weights that do not fit, how many a sentence names
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # the types of weights


def import_model(
    model: str, out: Path, overrides: Sequence[str] = (), *, revision: str | None = None, overwrite: bool = False
) -> Model:
    """Make a run folder of a model: what samples, fills, evaluates and judges a run does so with it at once.

    The run needs the model no longer, and a training continues from it by `init_from`.

    Args:
        model: name on the hub, folder, or checkpoint of Lightning.
        out: the run folder.
        overrides: `key.path=value` of its experiment, such as `data.length=256`. Without a `corpus` among them it is
            evaluated only on text that is named.
        revision: commit, tag or branch of the hub.
        overwrite: whether to replace a run that is there, once all of the new one is written.

    Raises:
        UserError: when no backbone reads the model, its files or weights do not fit, or there is a run already.
    """
    check_name(out)
    # A part's name is short for a table that only has `use`.
    short = overrides_as_table(overrides)
    said = {kind: {"use": value} if isinstance(value, str) else value for kind, value in short.items()}
    if RunFolder(out).keeps(source := Path(model)) or (source.is_dir() and source.resolve() == out.resolve()):
        raise UserError(f"{clip(out)} would be written over the model that it reads; choose another folder")
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
            raise UserError(f"{out} has a run already; replace it with --overwrite, or choose another folder")
        backbone = experiment.parts["backbone"]
        if backbone.lora_rank:
            raise UserError(
                "backbone.lora_rank: an import trains nothing; leave it out, and set it in the training that begins "
                f"with init_from={out}"
            )
        if not backbone.built_with_weights:  # compare, before it takes the memory that settings ask
            with _understanding(published), torch.device("meta"), needing_no_memory():
                backbone.imported(assemble(experiment, context), published)
        module = assemble(experiment, context).eval()
        # Its weights are those of the run from now on.
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
    """Make a sentence of what goes wrong with settings of any shape and size."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise UserError(
            f"{published.model} has settings of another form ({type(error).__name__}: {clip(error)}); get it again"
        ) from None


def _reader(published: Published, said: dict[str, Any]) -> Any:
    """Return the class of the backbone that reads a model: the one that `backbone.use` names, or the only one."""
    zoo, named = Zoo.load(), said.get("backbone", {}).get("use")
    known = [zoo.component("backbone", name) for name in ([str(named)] if named else zoo.names("backbone"))]
    able: list[Any] = [cls for cls in known if hasattr(cls, "import_table")]
    if named:
        if not able:
            raise UserError(f"backbone.use: {named!r} reads no published model; leave it out")
        return able[0]
    reading = [cls for cls in able if cls.reads(published.config)]
    if len(reading) == 1:
        return reading[0]
    kind = published.config.get("model_type")
    what = f"{published.model} (model_type {clip(repr(kind))})" if kind else published.model
    if reading:
        names = ", ".join(cls.name for cls in reading)
        raise UserError(f"{what} is read by several backbones; choose one by backbone.use=, of {names}")
    names = ", ".join(cls.name for cls in able) or "none is installed"
    raise UserError(
        f"no backbone reads {what} of itself (those that read models: {names}); install a package that does, as "
        "atat-zoo-checkpoints or atat-zoo-transformers, or name a backbone by backbone.use="
    )


def fill(own: Mapping[str, Tensor], constants: Mapping[str, Tensor], published: Published) -> None:
    """Give a network the weights of a published model.

    Args:
        own: the network's weights by the names that the model has for them, in its shapes; views are written into. Of
            those that have no memory yet only names, shapes and types are compared.
        constants: what the model stores beside them and the network computes; they may be absent, and must be equal.
        published: the model.

    Raises:
        UserError: when a weight is missing, is not known, has another shape or type, or a number that is not finite;
            the sentence names them.
    """
    weights = published.weights
    wrong = [f"{name} is missing" for name in own if name not in weights]
    wrong += [f"{name} is not known" for name in weights if name not in own and name not in constants]
    for name, tensor in own.items() if not wrong else ():
        found = weights[name]
        if found.shape != tensor.shape:
            wrong.append(f"{name} is {list(found.shape)} and not {list(tensor.shape)}")
        elif found.dtype not in FLOATS:
            wrong.append(f"{name} is of {found.dtype}, which is not the type of a weight")
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
            wrong.append(f"{name} is not what it is computed to be")
    refuse_other(wrong, published.model)


def refuse_other(wrong: Sequence[str], model: str) -> None:
    """Raise a `UserError` if weights are not those that a model's settings say; each clause names one."""
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise UserError(
            f"{model} has other weights than its settings say: {clip('; '.join(wrong[:_NAMED]))}{more}; get "
            "the model again, or correct what does not fit by backbone.KEY=VALUE"
        )


def refuse_without_row(context: Context, rows: int, model: str) -> None:
    """Raise a `UserError` that names the tokens of the tokenizer for which a model's embedding has no row."""
    V, library = context.vocabulary_size, context.tokenizer and context.tokenizer.library
    if rows < V:
        names = [repr(library.id_to_token(i)) for i in range(rows, V)] if library else []
        named = f", the first without one is {clip(names[0], 60)}" if names else ""
        raise UserError(
            f"{model}: the embedding has {rows} rows and the tokenizer {V} tokens{named}; take the model's own "
            f"tokenizer, or give the model a row for each by `resize_token_embeddings({V})` and save it again"
        )


def refuse_unread(tokenizer: TokenizerModel, model: str) -> None:
    """Raise a `UserError` if a tokenizer reads none of its own tokens, so that it knows no text at all."""
    own = np.flatnonzero(tokenizer.byte_counts())
    texts = [tokenizer.decode([int(i)]) for i in own[:: 1 + len(own) // _PROBED]]
    if not any(i != tokenizer.unknown for ids in tokenizer.encode_batch(texts) for i in ids):
        raise UserError(
            f"the tokenizer of {model} has {tokenizer.vocabulary_size} tokens and reads any text as unknown; take the "
            "files of its tokenizer again, or name another by tokenizer.model or tokenizer.path"
        )


def refuse_not_finite(name: str, weight: Tensor, model: str) -> None:
    """Raise a `UserError` if a weight of a published model has a number that is not finite as the network holds it."""
    if count := int((~weight.isfinite()).sum()):
        many = f"{count:,} numbers that are" if count > 1 else "1 number that is"
        half = weight.dtype == torch.float16
        remedy = 'in float16; set backbone.dtype="bfloat16", or ' if half else "; "
        raise UserError(f"{model}: {name} has {many} not finite{' ' * half}{remedy}get the model again")
