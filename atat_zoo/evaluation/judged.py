"""Generate texts with a run, and score them and as many held-out texts of the same length with a judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.data import is_framed
from atat_zoo.data.build import build
from atat_zoo.errors import UserError
from atat_zoo.evaluation import mauve as mauves
from atat_zoo.evaluation.generative import Scores, score
from atat_zoo.evaluation.overlap import overlap
from atat_zoo.evaluation.perplexity import finite, record, special_ids
from atat_zoo.evaluation.run import held_out_text
from atat_zoo.registry.spec import unstructure
from atat_zoo.run import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from atat_zoo.evaluation.judges import JudgeModel
    from atat_zoo.experiment import EvaluationSpec
    from atat_zoo.model import Model
    from atat_zoo.samplers import Sampler

SIZES = (4, 8, 13)


@attrs.frozen(kw_only=True)
class JudgedRun:
    """The scores of a run's text by a judge."""

    judge: str  # its title
    judge_table: dict[str, Any]  # its specification
    sampler: dict[str, Any]  # the sampler's specification
    step: int  # optimizer steps of the weights
    ema: bool  # whether the weights are a moving average
    number: int  # generated texts
    length: int  # their tokens, special ones included
    seed: int  # of the sampler
    split: str  # the split of the held-out texts
    model: Scores  # the scores of the generated texts
    data: Scores  # the same for held-out texts of the same length, as many if there are enough

    def to_table(self) -> dict[str, Any]:
        """Return everything as a JSON object; non-finite numbers become null."""
        plain = attrs.asdict(self, recurse=False)
        table: dict[str, Any] = finite(plain | {"model": self.model.to_table(), "data": self.data.to_table()})
        return table


def judge_run(
    model: Model,
    run: str | Path,
    judge: JudgeModel,
    judge_spec: Any,
    *,
    sampler: Sampler,
    spec: EvaluationSpec,
    number: int = 64,
    length: int | None = None,
    seed: int = 0,
    mauve: bool = False,
    sizes: Sequence[int] = SIZES,
    progress: Callable[[str, int, int], None] | None = None,
) -> JudgedRun:
    """Generate texts with a model, score them and held-out texts, and save the result in the run folder.

    Most arguments are those of `bench`. `judge_spec` is the judge's specification, for the run folder; `spec` gives the
    split, `sizes` the n of the n-grams to look up in the training text. MAUVE uses the judge's features.

    Raises:
        UserError: when something is missing or too short; see `score`, `mauve.check` and `generate`.
    """
    if mauve:
        mauves.check(number)
    report = progress or (lambda stage, done, total: None)
    length = length or model.context.length
    data, reference = _held_out(model, run, spec, number, length)
    if mauve and len(reference) < number:
        raise UserError(
            f"the {spec.split} text has {len(reference)} sequences, and MAUVE compares as many texts as were written; "
            f"lower --number to {len(reference)} or take another --split"
        )
    report("writing", 0, number)
    generation = model.sample(number, sampler=sampler, length=length, seed=seed)
    report("writing", number, number)
    written, held_out = [row.cpu().numpy() for row in generation.sample.tokens], [row.numpy() for row in data]
    tokenizer = model.tokenizer
    copied = overlap(
        [written, held_out],
        build(model.experiment),
        sizes=sizes,
        special=special_ids(tokenizer),
        progress=lambda done, total: report("reading the training text", done, total),
    )
    real = [tokenizer.decode(ids.tolist()) for ids in held_out]
    distances: list[float | None] = [None, None]
    report("judging", 0, 2)
    if mauve:
        features = judge.features([tokenizer.decode(ids.tolist()) for ids in reference])
        distances[0] = mauves.mauve(judge.features(generation.texts), features)
        if reference is not data and len(data) == number:
            distances[1] = mauves.mauve(judge.features(real), features)
    of_model = score(
        generation.texts, written, judge, tokenizer=tokenizer, overlap=copied[0], written=generation, mauve=distances[0]
    )
    report("judging", 1, 2)
    of_data = score(real, held_out, judge, tokenizer=tokenizer, overlap=copied[1], mauve=distances[1])
    report("judging", 2, 2)
    result = JudgedRun(
        judge=judge.title,
        judge_table=unstructure(judge_spec),
        sampler=unstructure(sampler),
        step=model.step,
        ema=model.experiment.train.ema > 0,
        number=number,
        length=length,
        seed=seed,
        split=spec.split,
        model=of_model,
        data=of_data,
    )
    settings = (result.judge_table, result.sampler, spec.split, of_model.mauve is None, list(of_model.overlap.copied))
    name = f"judged-{result.sampler['use']}-{number}x{length}"
    record(RunFolder(Path(run)), name, result.to_table(), *settings)
    return result


def _held_out(
    model: Model, run: str | Path, spec: EvaluationSpec, number: int, length: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return held-out texts as tokens: those to score, and the reference of MAUVE.

    If there are enough, the two share no sequence, so that the first has the MAUVE of real text; else they are equal.
    """
    tokens, maskable, _ = held_out_text(model, run, spec.split, 2 * number)
    tokens, maskable = tokens[:, :length], maskable[:, :length].clone()
    if is_framed(model.experiment.data.special) and length < model.context.length:
        maskable[:, -1] = False  # where a generated text of this length has EOS
    rows = [row[of_text] for row, of_text in zip(tokens, maskable, strict=True)]
    if len(rows) < 2 * number:
        rows = rows[:number]
        return rows, rows
    return rows[0::2], rows[1::2]
