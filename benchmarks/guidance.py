"""Guided text about war and peace from a run on the default corpus: word frequencies, entropy, generative perplexity.

The words that are passed to guidance are counted separately from other words of the topic. Texts with at least one of
these words, which are the class that the classifier knows, are also counted separately. All settings use the same seed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from atat_zoo.cli import console
from atat_zoo.diffusion.statistics import ratio
from atat_zoo.evaluation.metrics import UnigramEntropyMetric
from atat_zoo.evaluation.overlap import pieces
from atat_zoo.evaluation.text_scores import ScoredTexts, values_of
from atat_zoo.generation.model import Model
from atat_zoo.registry import Zoo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atat_zoo.evaluation.judges import JudgeModel

# Words that are passed to guidance, and words that are not.
NAMED = ("war", "peace", "army", "navy", "enemy", "treaty")
RELATED = (
    *("wars", "peaceful", "armies", "armed", "arms", "battle", "military", "naval", "forces", "force", "troops"),
    *("soldiers", "enemies", "treaties", "hostilities", "hostile", "victory", "defense", "weapons", "nations"),
)
PROMPT = "The army and the navy"

ANCESTRAL = {"use": "ancestral", "steps": 64}
GUIDED_ORDER = {"use": "uncertainty_guided", "threshold": 0.0, "max_steps": 64}
BAYES = {"use": "naive_bayes", "words": list(NAMED)}


@attrs.frozen
class Setting:
    """One row of the table."""

    title: str
    guidance: dict[str, Any]
    sampler: dict[str, Any] = ANCESTRAL
    prompt: str = ""


def bias(strength: float) -> dict[str, Any]:
    return {"use": "token_bias", "words": list(NAMED), "strength": strength}


def classifier(strength: float, **changes: Any) -> dict[str, Any]:
    return {"use": "classifier", "classifier": BAYES, "strength": strength, **changes}


def free(strength: float) -> dict[str, Any]:
    return {"use": "classifier_free", "condition": PROMPT, "strength": strength}


def important(strength: float) -> dict[str, Any]:
    return {"use": "importance_bias", "words": list(NAMED), "strength": strength}


NONE = {"use": "none"}
# Larger than any vocabulary here: the exact posterior under the classifier.
EVERY = 1 << 20
LAST = {**GUIDED_ORDER, "first": "most_uncertain"}
SETTINGS = (
    Setting("none", NONE),
    Setting("token_bias, strength 1", bias(1.0)),
    Setting("token_bias, strength 2", bias(2.0)),
    Setting("token_bias, strength 4", bias(4.0)),
    Setting("classifier, strength 1", classifier(1.0)),
    Setting("classifier, all candidates, 1", classifier(1.0, candidates=EVERY)),
    Setting("all candidates, strength 2", classifier(2.0, candidates=EVERY)),
    Setting("all candidates, prior 0.01", classifier(1.0, candidates=EVERY, classifier={**BAYES, "prior": 0.01})),
    Setting("classifier, first order, 1", classifier(1.0, method="first_order")),
    Setting("classifier 1 + token_bias 1", {"use": "combined", "first": classifier(1.0), "second": bias(1.0)}),
    Setting("prompt only", NONE, prompt=PROMPT),
    Setting("prompt, classifier_free 1", free(1.0), prompt=PROMPT),
    Setting("prompt, classifier_free 2", free(2.0), prompt=PROMPT),
    Setting("most certain first", NONE, GUIDED_ORDER),
    Setting("most certain first, importance_bias −1", important(-1.0), GUIDED_ORDER),
    Setting("most uncertain first", NONE, LAST),
    Setting("most uncertain first, importance_bias 1", important(1.0), LAST),
)

INTRODUCTION = """\
# Guidance

How much does guidance raise the frequency of a topic's words, and how much does text quality suffer?

{note}

"""

METHOD = """\

## Method

`python -m benchmarks guidance --run RUN --judge JUDGE --markdown docs/studies/guidance.md` writes this page. RUN is the
MDLM baseline and JUDGE, the judge model, is the autoregressive baseline (`experiments/baselines/`): {number} texts per
setting with seed {seed}, ± one standard error over texts. The named words are passed to guidance: {named}. The related
words belong to the topic but are not passed to guidance. Words in the prompt are not counted.

## Limits

- Read the rates together with entropy and generative perplexity: meaningless text can contain a word at any rate.
- One small model and one seed; the judge model is as small as the generator.
"""


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks guidance")
    parser.add_argument("--run", required=True, help="a finished run on the default corpus")
    parser.add_argument("--judge", help="a run with an exact likelihood, which is the judge model")
    parser.add_argument("--num-samples", type=int, default=256, help="number of texts per setting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only use settings whose titles contain this word")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--markdown", type=Path, help="Markdown file to write")
    parser.add_argument("--note", default="", help="answer to the question on the Markdown page")
    parser.add_argument("--examples", type=Path, help="file for the first text of each setting")
    given, _ = parser.parse_known_args(sys.argv[2:])
    zoo, model = Zoo.load(), Model.from_run(given.run, given.device)
    judge = zoo.spec("judge", {"use": "run", "path": given.judge}).build(given.device) if given.judge else None
    rows, examples = [], []
    for setting in (setting for setting in SETTINGS if given.only in setting.title):
        row, text = measured(setting, model, judge, zoo, given.num_samples, given.seed)
        rows.append(row)
        examples.append(f"{setting.title}\n{text}\n")
        print(setting.title, file=sys.stderr)
    table = [cells(row) for row in rows]
    if given.json:
        print(
            json.dumps(
                {"run": given.run, "num_samples": given.num_samples}
                | {"named": NAMED, "related": RELATED, "rows": rows}
            )
        )
    elif given.markdown:
        given.markdown.write_text(INTRODUCTION.format(note=given.note), encoding="utf-8")
        with given.markdown.open("a", encoding="utf-8") as file, redirect_stdout(file):
            console.table(COLUMNS, table, as_markdown=True)
            print(METHOD.format(**vars(given), named=", ".join(NAMED)), end="")
    else:
        console.table(COLUMNS, table)
    if given.examples:
        given.examples.write_text("\n".join(examples), encoding="utf-8")


def measured(
    setting: Setting, model: Model, judge: JudgeModel | None, zoo: Zoo, number: int, seed: int
) -> tuple[dict[str, Any], str]:
    """Generate texts with a setting and count words."""
    guidance, sampler = zoo.spec("guidance", setting.guidance), zoo.spec("sampler", setting.sampler)
    made = model.sample(number, sampler=sampler, guidance=guidance, seed=seed, prompt=setting.prompt)
    # Given words are not counted as generated words.
    texts = [text.removeprefix(setting.prompt) for text in made.texts]
    skipped = len(model.tokenizer.encode(setting.prompt))
    cut = [pieces(ids[skipped:], ()) for ids in made.sample.tokens.cpu().numpy()]
    (entropy,) = values_of([UnigramEntropyMetric()], ScoredTexts(texts=texts, pieces=cut)).values()
    nats = None if judge is None else judge.nats(texts)
    perplexity, error = (None, None) if nats is None else ratio(*nats)
    exp = torch.tensor(perplexity).exp().item() if perplexity is not None else None
    return {
        "setting": setting.title,
        "guidance": setting.guidance,
        "sampler": setting.sampler,
        "named": share(texts, NAMED),
        "related": share(texts, RELATED),
        "texts": holding(texts, NAMED),
        "unigram_entropy": entropy.value,
        "generative_perplexity": exp,
        "generative_perplexity_stderr": None if exp is None or error is None else exp * error,
        "nfe": float(made.sample.nfe.double().mean()),
        "seconds": made.seconds,
    }, made.texts[0]


def words_of(text: str) -> list[str]:
    """Return the words of a text in lowercase."""
    return [word.casefold() for word in re.findall(r"[^\W\d_]+", text)]


def share(texts: Sequence[str], words: Sequence[str]) -> tuple[float, float]:
    """Return the share of words in the texts that are in a list, and the standard error over texts."""
    found = [words_of(text) for text in texts]
    hits = torch.tensor([sum(word in words for word in text) for text in found])
    return ratio(hits, torch.tensor([len(text) for text in found]))


def holding(texts: Sequence[str], words: Sequence[str]) -> tuple[float, float]:
    """Return the share of texts that contain a word from a list, and its standard error."""
    hits = torch.tensor([any(word in words for word in words_of(text)) for text in texts])
    return ratio(hits, torch.ones(len(hits)))


COLUMNS = ("setting", "named words", "related words", "texts with a named word", "entropy", "gen. perplexity", "NFE")


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    rates = [f"{100 * row[key][0]:.2f} ± {100 * row[key][1]:.2f} %" for key in ("named", "related")]
    judged = row["generative_perplexity"]
    return [
        row["setting"],
        *rates,
        f"{100 * row['texts'][0]:.0f} ± {100 * row['texts'][1]:.0f} %",
        f"{row['unigram_entropy']:.3f}",
        "" if judged is None else f"{judged:.1f} ± {row['generative_perplexity_stderr']:.1f}",
        f"{row['nfe']:.1f}",
    ]
