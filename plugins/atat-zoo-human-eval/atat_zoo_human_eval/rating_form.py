"""Rating forms with questions and shuffled texts from several runs; only the key maps texts to runs."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.registry import Zoo, component, param
from atat_zoo.registry.spec import structure, unstructure
from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.parsing import from_json, from_toml, read

Table = dict[str, Any]
FORMAT = 1
KEY = ".key.json"
_NAME = re.compile(r"\w[\w -]{0,39}")
_MOST = 10_000  # maximum number of texts in a form, which is one file


@component
class Question:
    """Question about a text, which raters answer with an integer from 1 to `points`."""

    text: str = param(help="the question")
    low: str = param("", help="meaning of the lowest rating, 1")
    high: str = param("", help="meaning of the highest rating")
    points: int = param(5, help="number of points on the scale; raters can also type a point's digit", ge=2, le=9)


QUESTIONS = {
    "fluency": Question(text="Is each sentence well formed?", low="hardly readable", high="without a mistake"),
    "coherence": Question(text="Do the sentences belong together?", low="unconnected", high="one train of thought"),
    "overall": Question(text="How good is the text as a whole?", low="poor", high="as if a person had written it"),
}


@attrs.frozen(kw_only=True)
class RatedText:
    """Text in a form, and the run that generated it."""

    run: int  # index of the run that generated the text, in the key
    text: str
    prompt: str = ""  # with which the text begins


@attrs.frozen(kw_only=True)
class RatingForm:
    """Form with its key, which maps each text to a run and is not part of the page."""

    questions: dict[str, Question]
    texts: tuple[RatedText, ...]  # in the order of the form, which numbers them from 1
    runs: tuple[Table, ...]  # {run, step, sampler} of each run
    seed: int  # seed of sampling and of the order

    @classmethod
    def shuffled(
        cls, questions: dict[str, Question], texts: Sequence[RatedText], runs: Iterable[Table], seed: int
    ) -> "RatingForm":
        """Return a form with shuffled texts, whose order depends only on the seed and the number of texts."""
        order = sorted(range(len(texts)), key=lambda i: hashlib.sha256(f"{seed}/{i}".encode()).digest())
        return cls(questions=questions, texts=tuple(texts[i] for i in order), runs=tuple(runs), seed=seed)

    def blinded(self) -> Table:
        """Return the content that raters see, and its digest, which identifies the form in their ratings."""
        questions = [{"name": name, **unstructure(each)} for name, each in self.questions.items()]
        texts = [{"text": each.text, "prompt": each.prompt} for each in self.texts]
        table = {"questions": questions, "texts": texts}
        written = json.dumps(table, sort_keys=True).encode()
        return {"form": hashlib.sha256(written).hexdigest()[:16], **table}

    @property
    def digest(self) -> str:
        """Digest of the questions and the texts in order, which identifies the form."""
        return str(self.blinded()["form"])

    def key(self) -> Table:
        """Return the key as a JSON object, from which `from_key` restores the complete form."""
        questions = {name: unstructure(each) for name, each in self.questions.items()}
        texts = [attrs.asdict(each) for each in self.texts]
        table = {"format": FORMAT, "form": self.digest, "seed": self.seed}
        return {**table, "runs": list(self.runs), "questions": questions, "texts": texts}

    @classmethod
    def from_key(cls, path: Path) -> "RatingForm":
        """Load a form from its key, or raise a `UserError` if the key is missing or damaged."""
        try:
            table = from_json(read(path))
            questions, wrong = _structured(table["questions"])
            texts = tuple(RatedText(**each) for each in table["texts"])
            form = cls(questions=questions, texts=texts, runs=tuple(table["runs"]), seed=table["seed"])
            intact = not wrong and table["format"] == FORMAT and form.digest == table["form"]
            named = [each["run"] for each in form.runs]
            intact &= all(isinstance(name, str) for name in named) and len({*named}) == len(named)
            intact &= {each.run for each in form.texts} == {*range(len(named))}
        except FileNotFoundError:
            raise UserError(f"the key {clip(path)} does not exist; pass the {KEY} file next to the form") from None
        except OSError as error:
            raise UserError(
                f"{clip(path)} cannot be read: {error.strerror}; pass the {KEY} file next to the form"
            ) from None
        except (ValueError, LookupError, TypeError, AttributeError):
            intact = False
        if not intact:
            raise UserError(
                f"{clip(path)} is damaged or is not a form's key; pass the {KEY} file that "
                f"`atat rate export` wrote next to the form"
            )
        return form


def questions_of(path: Path) -> dict[str, Question]:
    """Return the questions in a TOML file by name, or raise a `UserError` that lists all problems."""
    try:
        tables = from_toml(read(path).decode("utf-8"))
    except OSError as error:
        problem = f"--questions {clip(path)} cannot be read: {error.strerror}"
        raise UserError(f"{problem}; pass a TOML file with one table per question") from None
    except ValueError as error:
        raise UserError(f"--questions {clip(path)} is not valid TOML: {clip(error)}; correct it") from None
    questions, problems = _structured(tables)
    if not tables:
        problems.append('the file has no questions; add one table per question, such as [fluency] with text = "…"')
    if problems:
        raise UserError("\n".join(f"{clip(path)}: {problem}" for problem in problems))
    return questions


def _structured(tables: Table) -> tuple[dict[str, Question], list[str]]:
    """Return a dict from name to question, and all problems in the tables."""
    zoo, questions, problems = Zoo.load(), dict[str, Question](), list[str]()
    for name, table in tables.items():
        if not isinstance(table, dict):
            problems.append(f'{clip(name)}: expected a table, such as [{clip(name)}] with text = "…"')
            continue
        if not _NAME.fullmatch(name):
            problems.append(f"{clip(name)}: expected a name of at most 40 letters, digits, spaces, - and _")
        questions[name], wrong = structure(Question, table, name, zoo)
        problems += map(str, wrong)
    return questions, problems


def check_size(runs: Sequence[Path], prompts: Sequence[str], number: int) -> None:
    """Raise a `UserError` if a run or a prompt is passed twice, or if a form would have too many texts."""
    for what, given in (("run", list(map(str, runs))), ("prompt", list(prompts))):
        if twice := next((each for i, each in enumerate(given) if each in given[:i]), None):
            raise UserError(f"the {what} {clip(twice)} is passed twice; pass each {what} once")
    size = len(runs) * len(prompts) * number
    if size > _MOST:
        raise UserError(
            f"a form can have at most {_MOST:,} texts, not {size:,}; reduce --num-samples, the prompts or the runs"
        )
