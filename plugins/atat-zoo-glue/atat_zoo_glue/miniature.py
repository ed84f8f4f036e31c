"""A miniature of GLUE's nine tasks for tests, in GLUE's file format and with our own sentences.

One word of the last text determines the label, so a network that learns beats the most frequent class.
"""

import random
from pathlib import Path

# The folder of each task, the header line of its tables (CoLA's lack one), and its labels, the most frequent first.
TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "cola": ("CoLA", "", ("1", "0")),
    "sst2": ("SST-2", "sentence\tlabel", ("1", "0")),
    "mrpc": ("MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", ("1", "0")),
    "stsb": (
        "STS-B",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        ("1.000", "4.750"),
    ),
    "qqp": ("QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", ("0", "1")),
    "mnli": (
        "MNLI",
        "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
        ("entailment", "neutral", "contradiction"),
    ),
    "qnli": ("QNLI", "index\tquestion\tsentence\tlabel", ("entailment", "not_entailment")),
    "rte": ("RTE", "index\tsentence1\tsentence2\tlabel", ("not_entailment", "entailment")),
    "wnli": ("WNLI", "index\tsentence1\tsentence2\tlabel", ("0", "1")),
}
# The words that determine the label, and the other words.
TELLING = ("peace", "world", "nation")
_WORDS = ("the", "people", "of", "this", "a", "just", "with", "all", "states")
_SECOND = ("#2 String", "sentence2", "question2")


def write(root: Path, *, train: int = 60, held_out: int = 40, seed: int = 0) -> Path:
    """Write a folder per task to `root`, with `train` or `held_out` examples in each file, and return `root`."""
    draw = random.Random(seed)
    for task, (folder, head, labels) in TABLES.items():
        endings = ("_matched", "_mismatched") if task == "mnli" else ("",)
        for split, count in (("train", train), *((f"dev{ending}", held_out) for ending in endings)):
            lines = [head] if head else []
            lines += [_line(draw, head, labels, number) for number in range(count)]
            path = root / folder / f"{split}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return root


def _line(draw: random.Random, head: str, labels: tuple[str, ...], number: int) -> str:
    kind = draw.choices(range(len(labels)), weights=[3, 2, 1][: len(labels)])[0]
    first, second = (" ".join(draw.choices(_WORDS, k=draw.randrange(3, 7))) for _ in range(2))
    telling = f"{second} {TELLING[kind]}"
    if not head:
        return f"s{number}\t{labels[kind]}\t\t{telling}"
    columns = head.split("\t")
    cells = dict.fromkeys(columns, str(number))
    for column in columns:
        if column in ("#1 String", "sentence1", "question1", "question"):
            cells[column] = first
        elif column in _SECOND or column == "sentence":
            cells[column] = telling
        elif column in ("label", "Quality", "is_duplicate", "gold_label", "score"):
            cells[column] = labels[kind]
    return "\t".join(cells[column] for column in columns)
