"""Texts that a task has written, as another model sees them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import UserError
from atat_zoo.machine import lacking
from atat_zoo.results.naming import GENERATIVE_PERPLEXITY
from atat_zoo.results.tasks import Score
from atat_zoo.run import RunFolder, sha256_of
from atat_zoo.run.model_files import WEIGHTS

if TYPE_CHECKING:
    import torch


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
    folder = judge.folder if judge else None
    if folder is not None and os.path.realpath(folder) == os.path.realpath(run):
        raise UserError(f"judge.path: {folder} is the run itself, which does not judge its own text; name another")


def judged(judge: Any, texts: Sequence[str], device: torch.device | str, of: str) -> dict[str, Score]:
    """Return the generative perplexity of texts; nothing if the judge is None."""
    if judge is None:
        return {}
    nats, counted = judge.build(str(device)).nats(texts)
    return {GENERATIVE_PERPLEXITY: Score.over(GENERATIVE_PERPLEXITY, nats, counted, of=of, exponential=True)}
