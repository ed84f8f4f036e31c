"""What people rate: questions, and texts of several runs in a drawn order; the key alone says whose they are."""

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
_MOST = 10_000  # texts of a form, which is one file


@component
class Question:
    """A question about a text, answered by a whole number from 1 on."""

    text: str = param(help="the question")
    low: str = param("", help="meaning of the lowest rating, 1")
    high: str = param("", help="meaning of the highest rating")
    points: int = param(5, help="number of points of the scale; each is a key on the keyboard", ge=2, le=9)


QUESTIONS = {
    "fluency": Question(text="Is each sentence well formed?", low="hardly readable", high="without a mistake"),
    "coherence": Question(text="Do the sentences belong together?", low="unconnected", high="one train of thought"),
    "overall": Question(text="How good is the text as a whole?", low="poor", high="as if a person had written it"),
}


@attrs.frozen(kw_only=True)
class RatedText:
    """A text of a form."""

    run: int  # that wrote it: its number in the key
    text: str
    prompt: str = ""  # with which the text begins


@attrs.frozen(kw_only=True)
class RatingForm:
    """A form with its key: whose each text is, which the page does not have."""

    questions: dict[str, Question]
    texts: tuple[RatedText, ...]  # in the order of the form, in which they are numbered from 1 on
    runs: tuple[Table, ...]  # {run, step, sampler} of each
    seed: int  # of the texts and of their order

    @classmethod
    def shuffled(
        cls, questions: dict[str, Question], texts: Sequence[RatedText], runs: Iterable[Table], seed: int
    ) -> "RatingForm":
        """Return a form of texts in an order that depends on the seed and on their number alone."""
        order = sorted(range(len(texts)), key=lambda i: hashlib.sha256(f"{seed}/{i}".encode()).digest())
        return cls(questions=questions, texts=tuple(texts[i] for i in order), runs=tuple(runs), seed=seed)

    def blinded(self) -> Table:
        """Return what the raters see, and the digest that their ratings bring back."""
        questions = [{"name": name, **unstructure(each)} for name, each in self.questions.items()]
        texts = [{"text": each.text, "prompt": each.prompt} for each in self.texts]
        table = {"questions": questions, "texts": texts}
        written = json.dumps(table, sort_keys=True).encode()
        return {"form": hashlib.sha256(written).hexdigest()[:16], **table}

    @property
    def digest(self) -> str:
        """Of the questions and of the texts in their order: ratings of another form have another one."""
        return str(self.blinded()["form"])

    def key(self) -> Table:
        """Return the key, which is all that is known of the form."""
        questions = {name: unstructure(each) for name, each in self.questions.items()}
        texts = [attrs.asdict(each) for each in self.texts]
        table = {"format": FORMAT, "form": self.digest, "seed": self.seed}
        return {**table, "runs": list(self.runs), "questions": questions, "texts": texts}

    @classmethod
    def from_key(cls, path: Path) -> "RatingForm":
        """Read a key; a `UserError` when it is none, or is damaged."""
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
            raise UserError(f"there is no key {clip(path)}; name the {KEY} beside the form") from None
        except OSError as error:
            raise UserError(f"{clip(path)} cannot be read: {error.strerror}; name the {KEY} beside the form") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            intact = False
        if not intact:
            raise UserError(
                f"{clip(path)} is not the key of a form, or is damaged; name the file that "
                f"`atat rate export` wrote beside the form, which ends in {KEY}"
            )
        return form


def questions_of(path: Path) -> dict[str, Question]:
    """Return the questions of a TOML file, a table for each, by name; a `UserError` for all that is wrong in it."""
    try:
        tables = from_toml(read(path).decode("utf-8"))
    except OSError as error:
        problem = f"--questions {clip(path)}: it cannot be read: {error.strerror}"
        raise UserError(f"{problem}; name a TOML file with a table for each question") from None
    except ValueError as error:
        raise UserError(f"--questions {clip(path)}: it is not TOML: {clip(error)}; mend it") from None
    questions, problems = _structured(tables)
    if not tables:
        problems.append("it asks nothing; write a table for each question, like [fluency] with text")
    if problems:
        raise UserError("\n".join(f"{clip(path)}: {problem}" for problem in problems))
    return questions


def _structured(tables: Table) -> tuple[dict[str, Question], list[str]]:
    """Return questions by name, and all that is wrong in their tables."""
    zoo, questions, problems = Zoo.load(), dict[str, Question](), list[str]()
    for name, table in tables.items():
        if not isinstance(table, dict):
            problems.append(f"{clip(name)}: expected a table, like [{clip(name)}] with text")
            continue
        if not _NAME.fullmatch(name):
            problems.append(f"{clip(name)}: expected a name of at most 40 letters, digits, spaces, - and _")
        questions[name], wrong = structure(Question, table, name, zoo)
        problems += map(str, wrong)
    return questions, problems


def check_size(runs: Sequence[Path], prompts: Sequence[str], number: int) -> None:
    """Raise a `UserError` when a form would have a run twice, a prompt twice, or too many texts."""
    for what, given in (("run", list(map(str, runs))), ("prompt", list(prompts))):
        if twice := next((each for i, each in enumerate(given) if each in given[:i]), None):
            raise UserError(f"the {what} {clip(twice)} is named twice; name each once")
    size = len(runs) * len(prompts) * number
    if size > _MOST:
        raise UserError(f"--num-samples {number}: a form of {size:,} texts; nobody rates more than {_MOST:,}: lower it")
