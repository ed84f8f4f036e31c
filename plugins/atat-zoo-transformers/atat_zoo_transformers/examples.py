"""A small tokenizer and a small backbone for the conformance tests, written to a folder when they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_SPECIAL = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


def _tokenizer(folder: Path) -> dict[str, Any]:
    """Write a RoBERTa configuration and a byte-level tokenizer to a folder, and return the tokenizer's parameters."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    tokens = [*_SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    ends = [(_SPECIAL[name], tokens.index(_SPECIAL[name])) for name in ("cls", "sep")]
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    names = {f"{name}_token": token for name, token in _SPECIAL.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)
    transformers.RobertaConfig(vocab_size=len(tokens)).save_pretrained(folder)
    return {"model": str(folder)}


def _backbone(folder: Path) -> dict[str, Any]:
    """Write a BERT with 12 tokens and 2 layers to a folder, and return the backbone's parameters."""
    import torch
    import transformers

    from atat_zoo_transformers.model_description import reading

    size: dict[str, int] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=12, num_hidden_layers=2, max_position_embeddings=64, **size)
    with reading(str(folder)), torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertForMaskedLM(config).save_pretrained(folder)
    return {"model": str(folder), "mask_id": 3}


EXAMPLES = {("tokenizer", "transformers"): _tokenizer, ("backbone", "transformers"): _backbone}
