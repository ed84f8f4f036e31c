"""Tokenizers in the format of `transformers`: tokenizer.json and a table of special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.system.errors import UserError

# Candidates; the first one that is not in the vocabulary is used.
_MASKS = ("[MASK]", "<mask>", "<|mask|>")
_STARTS = ("[START]", "<start>", "<|start|>")
_PADDINGS = ("[PAD]", "<pad>", "<|pad|>")


def save(tokenizer: TokenizerModel, folder: Path, *, framed: bool, causal: bool, length: int) -> int:
    """Write the files that `AutoTokenizer.from_pretrained` reads, and return the id of the padding token.

    Token V, the first id after the vocabulary, is the mask or, for a causal model, the start token, declared as BOS.
    The padding token is the vocabulary's own, or token V + 1. A causal model pads on the left.

    Args:
        tokenizer: a tokenizer with a `library`.
        folder: an existing folder.
        framed: whether a training sequence starts with BOS and ends with EOS. Inputs of a causal model do not end with
            EOS, because it continues them.
        causal: whether the model is causal.
        length: maximum number of tokens in a text.

    Raises:
        UserError: if the tokenizer has no `library`, or its ids have gaps, so that V is not the library's next id.
    """
    from transformers import PreTrainedTokenizerFast

    if tokenizer.library is None:
        raise UserError(
            "the library `tokenizers` cannot express the tokenizer, so other programs could not read the model's text; "
            'train with tokenizer.use = "bpe", "bytes" or "pretrained"'
        )
    library = Tokenizer.from_str(tokenizer.library.to_str())
    library.encode_special_tokens = False
    ids = {"bos": tokenizer.bos, "eos": tokenizer.eos}
    names = {key: str(library.id_to_token(i)) for key, i in ids.items() if i is not None}
    vocabulary, V = library.get_vocab(with_added_tokens=True), tokenizer.vocabulary_size
    own = next((name for name in (_STARTS if causal else _MASKS) if name not in vocabulary), _MASKS[0])
    # If tokens begin with a space, the mask includes the space before it.
    spaced = any(len(token) > 1 and token[0] in "Ġ▁" for token in vocabulary)
    library.add_special_tokens([AddedToken(own, lstrip=spaced and not causal, special=True)])
    if library.token_to_id(own) != V:
        raise UserError(
            f"some ids below the tokenizer's largest id, {V - 1}, have no token, so the library assigns one of them to "
            "the mask; number the tokens without gaps, and train again"
        )
    special = {token.content for token in library.get_added_tokens_decoder().values() if token.special}
    unused = special - {*names.values()}
    padding = next((name for name in _PADDINGS if name in unused), _PADDINGS[0])
    while padding in vocabulary.keys() - unused:  # an ordinary token, BOS or EOS
        padding = f"[{padding}]"
    library.add_special_tokens([AddedToken(padding, special=True)])
    first = [own] if causal else []
    first += [names["bos"]] if framed and "bos" in names else []
    last = [names["eos"]] if framed and "eos" in names and not causal else []
    if first or last:
        ends = [(token, library.token_to_id(token)) for token in dict.fromkeys([*first, *last])]
        framing = " ".join([*first, "$A", *last])
        library.post_processor = processors.TemplateProcessing(single=framing, special_tokens=ends)
    roles = {f"{key}_token": name for key, name in names.items()}
    roles |= {"bos_token": own} if causal else {"mask_token": own}
    roles |= {"pad_token": padding}
    how: dict[str, Any] = {"model_max_length": length, "clean_up_tokenization_spaces": False}
    how |= {"model_input_names": ["input_ids", "attention_mask"], "padding_side": "left" if causal else "right"}
    PreTrainedTokenizerFast(tokenizer_object=library, **roles, **how).save_pretrained(folder)
    # Versions of the library differ in the name of the class and in the file from which they read special tokens.
    path = folder / "tokenizer_config.json"
    own_table = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    for file, table in ((path, own_table), (folder / "special_tokens_map.json", roles)):
        file.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return library.get_vocab(with_added_tokens=True)[padding]


def padding_of(library: Tokenizer, eos: str | None) -> str | None:
    """Return the padding token's name: a special token with a usual name, or else EOS, any special token or None."""
    special = [token.content for _, token in sorted(library.get_added_tokens_decoder().items()) if token.special]
    return next((name for name in (*_PADDINGS, eos, *special) if name is not None and name in {*special, eos}), None)
