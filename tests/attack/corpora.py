"""Strange text is built into shards: whole and the same each time, or a sentence."""

import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

import zstandard

from atat_zoo.data.tokenizers.tokenizer_models import of_bytes
from tests.attack.damage import CHANGES
from tests.attack.driver import FAILED, Verdict, atat, judge, one_by_one
from tests.tiny import WORDS

EXPERIMENT = """\
backbone = {{layers = 1, width = 32, heads = 2, max_length = 64}}
[data]
root = "shards"
length = {length}
lanes = {lanes}
sequences_per_member = {member}
sequences_per_shard = {shard}
special_tokens = "{special}"
remainder = "{remainder}"
packing = "{rows}"
"""
CHARACTERS = 'use = "characters"'
# Its ends are plain entries of a vocabulary of bytes, and `<|role|>` is added, but not as a special token.
PRETRAINED = 'use = "pretrained"\npath = "tokenizer.json"\nbos = "<s>"\neos = "</s>"'
TOKENIZERS = (
    PRETRAINED,
    'use = "bytes"',
    'use = "bpe"\nvocabulary_size = 300',
    f'{CHARACTERS}\nunknown = "space"',
    CHARACTERS,
)


def attack(draw, number, seed, base, work):
    story = f"\n  {compose(draw, work)}"
    ended = atat(["data", "build", "x.toml"], work)
    verdict = judge(ended, (0, 2, 130))  # 130: too large for the time there is, and stopped
    if verdict.why or ended.code != 0:
        return verdict._replace(why=verdict.why + story if verdict.why else "")
    folder = next(path for path in (work / "shards").iterdir() if (path / "manifest.json").exists())
    why = judge(atat(["data", "info", str(folder), "--full"], work), (0,)).why
    atat(["data", "build", "x.toml", "data.root=again"], work)
    again = work / "again" / folder.name
    there, second = [json.loads((each / "manifest.json").read_text()) for each in (folder, again)]
    if there != second:
        why = why or "the second build gives other shards"
    for split, record in there["splits"].items():
        if record["sequences"] * there["length"] != record["tokens"] + record["padded"]:
            why = why or f"the counts of {split} do not add up"
        # With EOS behind each document alone, whatever the documents say.
        if there["special"] == "document" and record["special_tokens"] > record["documents"]:
            why = why or f"the text of {split} has EOS"
    return Verdict(FAILED, why + story, ended.memory) if why else verdict


def compose(draw, work):
    """Write an experiment and its corpus; returns what it is."""
    kind = draw.choice(("files", "files", "files", "json", "text8"))
    texts = {"files": TEXTS, "json": LINES, "text8": LETTERS}[kind]
    made = draw.choice(list(texts))
    data, story = texts[made](draw), [kind, made]
    name = {"files": "text.txt", "json": "text.jsonl", "text8": "text8"}[kind]
    packing = draw.choice(("", "", "", ".gz", ".zip" if kind == "text8" else ".zst"))
    if packing:
        is_bomb = kind == "text8" and draw.random() < 0.2
        data = bomb(packing) if is_bomb else packed(data, packing)
        name += packing
        story.append(f"bomb{packing}" if is_bomb else packing)
    if draw.random() < 0.2:
        change = draw.choice(CHANGES)
        data = change(draw, data or b"\0")
        story.append(change.__name__)
    (work / name).write_bytes(data)
    if kind == "text8":
        corpus = f'use = "text8"\npath = "{name}"'
    else:
        document = draw.choice(("file", "line", "paragraph"))
        # Of one document none is held out.
        apart = ('validation = ["other.txt"]', "validation_share = 0.0\ntest_share = 0.0")
        held_out = draw.choice((*apart, *apart, *(() if document == "file" else ("",))))
        (work / "other.txt").write_text("we the people of the union\n" * 9)
        corpus = f'use = "files"\ntrain = ["{name}"]\n{held_out}\ndocument = "{document}"'
    tokenizer = draw.choice(TOKENIZERS)
    if tokenizer == PRETRAINED:
        library = of_bytes([])
        content = json.loads(library.to_str())
        content["model"]["vocab"] |= {"</": 256, "</s": 257, "</s>": 258, "<s>": 259}
        content["model"]["merges"] = [["<", "/"], ["</", "s"], ["</s", ">"]]
        content["pre_tokenizer"]["use_regex"] = False
        library = library.from_str(json.dumps(content))
        library.add_tokens(["<|role|>"])
        library.save(str(work / "tokenizer.json"))
    special = draw.choice(("none", "document", "sequence", "both"))
    # Short sequences, a few in a member and a shard, are slow, and the same again and again.
    length = draw.choice((1, 4, 16, 64)) if len(data) < 1 << 20 else 64
    if special != "none" and tokenizer.startswith(CHARACTERS):
        tokenizer += "\nspecial = true"
    settings = EXPERIMENT.format(
        length=length,
        lanes=draw.choice((1, 2, 8)),
        member=8 * (64 // length),
        shard=draw.choice((16, 64, 256)) * (64 // length),
        special=special,
        remainder=draw.choice(("drop", "pad")),
        rows=draw.choice(("packed", "document")),
    )
    (work / "x.toml").write_text(f"{settings}[corpus]\n{corpus}\n[tokenizer]\n{tokenizer}\n")
    return f"{', '.join(story)}; {corpus!r}; {tokenizer!r}"


def packed(data, suffix):
    if suffix == ".gz":
        return gzip.compress(data, mtime=0)
    if suffix == ".zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo("text8"), data, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()
    return zstandard.compress(data)


def bomb(suffix):
    """Return a few megabytes that hold 2.5 GB."""
    piece, pieces = b"a" * (64 << 20), 40
    if suffix == ".gz":
        return gzip.compress(piece, 1, mtime=0) * pieces
    buffer = io.BytesIO()
    archive = zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open("text8", "w", force_zip64=True) as file:
        for _ in range(pieces):
            file.write(piece)
    return buffer.getvalue()


# The texts, each a function of the source


def plain(draw, lines=300):
    return "\n".join(" ".join(draw.choices(WORDS, k=draw.randrange(30))) for _ in range(lines)).encode()


def line_of(draw):
    return plain(draw).replace(b"\n", b" ") * draw.choice((1, 30)) + b"x" * 200_000


def encoded(draw):
    codec = draw.choice(("latin-1", "utf-16", "utf-32", "utf-8-sig", "cp037"))
    return plain(draw).decode().replace("e", "é").encode(codec)


def signs(draw):
    """Signs from all of Unicode, with those that mean something to tokenizers."""
    special = [
        "<bos>",
        "<eos>",
        "<s>",
        "</s>",
        "<|role|>",
        "＜|role|＞",
        "[MASK]",
        "<|endoftext|>",
        "\ufeff",
        "\u202e",
        "e\u0301" * 50,
    ]
    found = []
    for _ in range(5000):
        point = draw.choice((draw.randrange(0x80), draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)))
        found.append(draw.choice((chr(point), " ", "\n", draw.choice(special))))
    return "".join(found).encode()


ENDS = (b"\r\n", b"\r", b"\n\n", "\u2028".encode(), b"\x0b", b"\x1c")
Make = Callable[["random.Random"], bytes]
TEXTS: dict[str, Make] = {
    "plain": plain,
    "empty": lambda draw: draw.choice((b"", b"\n", b" \n\t\n" * 50, b"\0", b"\xef\xbb\xbf", b"x")),
    "noise": lambda draw: draw.randbytes(draw.choice((1, 300, 20_000))),
    "encoded": encoded,
    "nulls": lambda draw: plain(draw).replace(b"e", b"\0"),
    "a long line": line_of,
    "line ends": lambda draw: plain(draw).replace(b"\n", draw.choice(ENDS)),
    "signs": signs,
    "much in little": lambda draw: draw.choice((b"a", b"\n", b"ab ", b"\0")) * draw.choice((10_000, 3 << 20, 60 << 20)),
    "letters": lambda draw: bytes(draw.choices(b"abcdefghij ", k=draw.choice((1, 100, 30_000)))),
}


def json_lines(draw):
    odd: tuple[Any, ...] = (
        *("5", "null", "[]", '"text"', "{}", '{"text": 5}', '{"text": null}', '{"text": {"text": "x"}}', "NaN"),
        *('{"text": "\\ud800"}', '{"text": "a", "text": "b"}', '{"text": "x"', "[" * 50_000, "9" * 5000),
        *('{"text": "\\u0000"}', '{"text": ""}'),
    )
    lines = [json.dumps({"text": line}) for line in plain(draw).decode().splitlines()]
    for _ in range(draw.choice((0, 1, 1, 5))):
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(odd))
    return "\n".join(lines).encode()


LETTERS = {name: TEXTS[name] for name in ("letters", "much in little", "noise")}
LINES: dict[str, Make] = {"JSON": json_lines, "more JSON": json_lines}
LINES |= {name: TEXTS[name] for name in ("noise", "empty", "much in little")}
KIND = one_by_one("corpora", 2, attack)
