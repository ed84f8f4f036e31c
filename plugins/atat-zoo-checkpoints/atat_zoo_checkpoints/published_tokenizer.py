"""Find the tokenizer of a published model: its own tokenizer.json, or that of the tokenizer that its settings name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo.system.errors import UserError
from atat_zoo_checkpoints.published_model import fetched

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from atat_zoo_checkpoints.published_model import Published

FILE = "tokenizer.json"
# The hub's names for tokenizers, by their short names.
_ON_THE_HUB = {"gpt2": "openai-community/gpt2", "bert-base-uncased": "google-bert/bert-base-uncased"}
_ENDS = (("<|endoftext|>", "<|endoftext|>"), ("[CLS]", "[SEP]"), ("<bos>", "<eos>"))


class Text(NamedTuple):
    """Experiment's table for a tokenizer, and its size and special ids, or None for these unless it is `pretrained`."""

    table: dict[str, Any]
    size: int | None  # V
    mask: int | None  # the id of its own mask, if it has one
    framed: bool  # whether it has BOS and EOS
    bos: int | None


def text_of(published: Published, said: dict[str, Any], named: str | None, ends: tuple[str, str] | None = None) -> Text:
    """Return the `Text` of a model's tokenizer; raise a `UserError` if it is missing or unreadable.

    Args:
        published: the model.
        said: the user's tables; `use`, `path`, `bos` and `eos` of its `tokenizer` take precedence.
        named: the tokenizer that the model's settings name, which is used if the model does not have its own.
        ends: names of BOS and EOS; None for the first of the usual pairs that is in the vocabulary.
    """
    given = said.get("tokenizer", {})
    if given.get("use", "pretrained") != "pretrained":
        return Text(dict(given), None, None, False, None)
    if "path" in given:
        path: Path | None = Path(str(given["path"])).expanduser()
    else:
        path = None if published.is_checkpoint else published.file(FILE)
        if path is None and named:
            try:
                path = fetched(_ON_THE_HUB.get(named, named), FILE)
            except UserError as error:
                raise UserError(
                    f"{published.model} uses the tokenizer {named!r}: {error}; or pass its tokenizer.json with "
                    "tokenizer.path=FILE"
                ) from None
    if path is None:
        raise UserError(f"{published.model} does not have a {FILE}; pass one with tokenizer.path=FILE")
    library = _library(path)
    pairs = _ENDS if ends is None else (ends,)
    bos, eos = next((pair for pair in pairs if None not in map(library.token_to_id, pair)), (None, None))
    bos, eos = given.get("bos", bos), given.get("eos", eos)
    named_ends = {key: value for key, value in (("bos", bos), ("eos", eos)) if value is not None}
    table: dict[str, Any] = {"use": "pretrained", "path": str(path), **named_ends}
    size = max(library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return Text(
        table,
        size,
        library.token_to_id("[MASK]"),
        len(named_ends) == 2,
        None if bos is None else library.token_to_id(str(bos)),
    )


def _library(path: Path) -> Tokenizer:
    from atat_zoo.data.tokenizers.tokenizer_models import from_file

    return from_file(path / FILE if path.is_dir() else path)
