"""Small models of each architecture, made by their configurations, with the tokenizers of their kind."""

from __future__ import annotations

import random

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = ("the", "people", "of", "this", "nation", "keep", "a", "just", "peace", "with", "all", "states", "world")
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


def lines(count: int, seed: int = 0) -> list[str]:
    """Return sentences in which some words follow others more often."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        word, line = draw.randrange(len(WORDS)), []
        for _ in range(12):
            line.append(WORDS[word])
            word = (word + draw.choice((1, 1, 1, 2, 5))) % len(WORDS)
        found.append(" ".join(line))
    return found


def word_pieces(special=BERT) -> Tokenizer:
    """Return a tokenizer as BERT's."""
    made = Tokenizer(models.WordPiece(unk_token=special["unk"]))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=90, special_tokens=list(special.values()), initial_alphabet=list("abcdefghijklmnopqrstuvwxyz")
    )
    return framed(made, trainer, special)


def byte_pairs(special=ROBERTA) -> Tokenizer:
    """Return a tokenizer as RoBERTa's, GPT-2's or ModernBERT's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(special.values()), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    return framed(made, trainer, special)


def framed(made, trainer, special):
    made.train_from_iterator(lines(200), trainer)
    if "cls" in special:
        ends = [(special[name], made.token_to_id(special[name])) for name in ("cls", "sep")]
        single = f"{special['cls']} $A {special['sep']}"
        pair = f"{single} $B:1 {special['sep']}:1"
        made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)
    return made


def _masked(config, tokenizer, **settings):
    return config, transformers.AutoModelForMaskedLM, {**SIZE, **settings}, tokenizer


ARCHITECTURES = {
    "bert": _masked("bert", word_pieces, max_position_embeddings=64),
    "roberta": _masked("roberta", byte_pairs, max_position_embeddings=66, pad_token_id=1, bos_token_id=0),
    "distilbert": (
        "distilbert",
        transformers.AutoModelForMaskedLM,
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 64},
        word_pieces,
    ),
    "modernbert": _masked(
        "modernbert",
        lambda: byte_pairs(BERT),
        max_position_embeddings=64,
        local_attention=8,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        cls_token_id=2,
        sep_token_id=3,
    ),
    "electra": _masked("electra", word_pieces, embedding_size=8, max_position_embeddings=64),
    "albert": _masked("albert", word_pieces, embedding_size=8, max_position_embeddings=64),
    "gpt2": (
        "gpt2",
        transformers.AutoModelForCausalLM,
        {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0},
        lambda: byte_pairs({"eos": "<|endoftext|>", "other": "<|other|>"}),
    ),
    "llama": (
        "llama",
        transformers.AutoModelForCausalLM,
        {**SIZE, "num_key_value_heads": 1, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0},
        lambda: byte_pairs({"eos": "<|endoftext|>", "other": "<|other|>"}),
    ),
}
# Their code takes no attention mask of ours.
OLDER = {
    "megatron-bert": _masked("megatron-bert", word_pieces, max_position_embeddings=64),
    "opt": (
        "opt",
        transformers.AutoModelForCausalLM,
        {**SIZE, "ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 64},
        ARCHITECTURES["gpt2"][-1],
    ),
}
# Their logits are no linear function of what the last layer reads.
CAPPED = {
    "gemma2": (
        "gemma2",
        transformers.AutoModelForCausalLM,
        {**SIZE, "head_dim": 8, "num_key_value_heads": 1, "max_position_embeddings": 64},
        ARCHITECTURES["gpt2"][-1],
    ),
}
CAUSAL = ("gpt2", "llama")


def small(name, folder, **changes):
    """Write a small model of an architecture with random weights into a folder, with its tokenizer; return it."""
    kind, auto, settings, tokenizer = {**ARCHITECTURES, **OLDER, **CAPPED}[name]
    library = tokenizer()
    names = {"roberta": ROBERTA}.get(name, BERT)
    if auto is transformers.AutoModelForCausalLM:
        names = {"eos": "<|endoftext|>"}
    torch.manual_seed(0)
    settings = {"vocab_size": library.get_vocab_size(), **settings, **changes}
    model = auto.from_config(transformers.AutoConfig.for_model(kind, **settings)).eval()
    with torch.no_grad():  # larger than a training begins with, so that its predictions differ
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, **{f"{key}_token": token for key, token in names.items()}
    ).save_pretrained(folder)
    return model
