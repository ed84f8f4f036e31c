"""Texts that a task has written: how varied they are, and how another model sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import Problem, UserError
from atat_zoo.evaluation.results.naming import GENERATIVE_PERPLEXITY
from atat_zoo.evaluation.results.tasks import Score
from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.registry import problems_of
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.machine import lacking

if TYPE_CHECKING:
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model
    from atat_zoo.generation.writer import Generation


def sampling_inputs(sampler: Any, experiment: Experiment) -> list[Any]:
    """Return what the scores of sampled texts depend on: the sampler, or the run's own if None, guidance and text."""
    parts = experiment.parts
    settings = [unstructure(sampler or parts["sampler"]), unstructure(parts["guidance"])]
    return [*settings, parts["corpus"].fingerprint()]


def judge_problems(judge: Any, experiment: Experiment) -> Iterator[Problem]:
    """Yield why a judge, which may be None, cannot judge."""
    yield from problems_of(judge, experiment) if judge else ()


def judge_absent(judge: Any) -> Iterator[str]:
    """Yield a sentence if the package or the run of a judge, which may be None, is not there."""
    yield from lacking([judge] if judge else [])
    folder = judge.folder if judge else None
    if folder is not None and not (RunFolder(Path(folder)).model / WEIGHTS).is_file():
        yield f"the judge: there is no finished run {folder}; name another, or leave judge out"


def judge_inputs(judge: Any) -> str | None:
    """Return the SHA-256 of the weights of a judge that is a run."""
    folder = judge.folder if judge else None
    return None if folder is None else sha256_of(RunFolder(Path(folder)).model / WEIGHTS)


def require_another(judge: Any, run: Path) -> None:
    """Raise `UserError` if the judge is the run whose texts it is to judge."""
    from atat_zoo.evaluation.judges import judges_itself

    if judges_itself(judge, run):
        raise UserError(
            f"judge.path: {judge.folder} is the run itself, which does not judge its own text; name another"
        )


def scores_of(written: Generation, of: str, *, judge: Any, model: Model, n: int | None = None) -> dict[str, Score]:
    """Return the entropy of texts, with an n their distinct n-grams, and with a judge their generative perplexity."""
    from atat_zoo.evaluation.overlap import pieces
    from atat_zoo.evaluation.text import special_ids
    from atat_zoo.evaluation.text_states import distinct, entropy

    special = special_ids(model.tokenizer)
    cut = [pieces(ids, special) for ids in written.sample.tokens.cpu().numpy()]
    scores = {"entropy": Score.over("nats", [entropy("", text)[0] for text in cut], of=of)}
    if n is not None:
        found = [distinct(text, n) for text in cut]
        scores[f"distinct-{n}"] = Score.over("share of n-grams", *zip(*found, strict=True), of=of)
    if judge is not None:
        nats, counted = judge.build(model.placement).nats(written.texts)
        scores[GENERATIVE_PERPLEXITY] = Score.over(GENERATIVE_PERPLEXITY, nats, counted, of=of, exponential=True)
    return scores
