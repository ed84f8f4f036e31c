"""Runs that were never trained, and a model of the Hugging Face library with random weights."""

from __future__ import annotations

import pytest
import torch

from atat_zoo.data.build import build
from atat_zoo.experiment import from_table
from atat_zoo.experiment.runs import RunFolder, write_text
from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from tests import talk

WORDS = ["the", "old", "man", "saw", "a", "sea", "of", "green", "and", "gold", "under", "no", "sky", "at", "night"]


def prose(sentences, seed):
    """Return sentences of five words, one a line."""
    state, words = seed, []
    for _ in range(5 * sentences):
        state = (state * 1103515245 + 12345) % 2**31
        words.append(WORDS[(state >> 16) % len(WORDS)])
    return "".join(" ".join(words[i : i + 5]) + "\n" for i in range(0, len(words), 5))


def make_run(root, name, objective="autoregressive", *, blank=False, length=16, **changes):
    """Write a run folder as a training leaves it, with random weights, or blank ones: then it predicts all alike."""
    texts = root / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    for split, sentences, seed in (("train", 200, 1), ("validation", 60, 2), ("test", 60, 3)):
        (texts / f"{split}.txt").write_text(prose(sentences, seed))
    files = {split: [str(texts / f"{split}.txt")] for split in ("train", "validation", "test")}
    shards = {"lanes": 2, "sequences_per_member": 8, "sequences_per_shard": 64}
    table = {
        "name": name,
        "seed": 4,
        "corpus": {"use": "files", "document": "line", **files},
        "tokenizer": "bytes",
        "backbone": {"use": "dit", "layers": 1, "width": 16, "heads": 2, "max_length": 64, "output_bias": "none"},
        "objective": objective,
        "data": {"root": str(root / "shards"), "length": length, "special_tokens": "none", **shards},
        "evaluation": {"sequences": 8, "batch_size": 4},
    }
    if objective == "autoregressive":
        table["sampler"] = "left_to_right"
    for key, value in changes.items():
        table[key] = {**table[key], **value} if isinstance(table.get(key), dict) else value
    experiment = from_table(table)
    tokenizer = experiment.parts["tokenizer"].load(build(experiment))
    context = Context(vocabulary_size=tokenizer.vocabulary_size, length=length, seed=4)
    module = assemble(experiment, context)
    if not blank:
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    folder = RunFolder(root / name)
    folder.path.mkdir(parents=True)
    write_text(folder.resolved, experiment.to_toml())
    Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module.eval(), step=3).save(folder.model)
    return folder.path


def make_chat(root):
    """Write a run of dialogues in rows of their own."""
    talk.write(root / "talk.jsonl", number=60)
    corpus = {"train": [str(root / "talk.jsonl")], "validation": [], "test": [], "document": "file"}
    corpus |= {"validation_share": 0.2, "test_share": 0.0}
    parts = {"backbone": {"max_length": 128}, "sampler": {"use": "ancestral", "steps": 2}}
    data = {"format": "chat", "packing": "document"}
    return make_run(root, "chat", "mdlm", length=120, corpus=corpus, data=data, **parts)


def runs(**made):
    """Return a fixture: a folder with runs of these names, each by what `make_run` takes."""

    @pytest.fixture(scope="module")
    def root(tmp_path_factory):
        folder = tmp_path_factory.mktemp("runs")
        for name, options in made.items():
            make_run(folder, name, **options)
        return folder

    return root


def make_gpt2(folder, *, length=24, bos=True, unknown=False):
    """Write a tiny GPT-2 and its tokenizer as the Hugging Face library does, with random weights."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if unknown:
        tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "sea": 2, "<s>": 3}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        special = {"unk_token": "[UNK]", "bos_token": "<s>"}
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        settings = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "special_tokens": ["<|endoftext|>"]}
        trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, **settings)
        tokenizer.train_from_iterator([prose(50, 1)], trainer)
        special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"} if bos else {}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(folder)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "n_positions": length, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0)
    model.save_pretrained(folder)
    return folder
