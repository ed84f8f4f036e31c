"""Let a run write, and a judge score it beside held-out text of the same number and length."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.data.build import build
from atat_zoo.errors import UserError
from atat_zoo.evaluation import mauve as mauves
from atat_zoo.evaluation.generative import Cost, Scores, score
from atat_zoo.evaluation.overlap import overlap
from atat_zoo.evaluation.perplexity import finite, special_ids
from atat_zoo.evaluation.run import held_out_text
from atat_zoo.registry.spec import unstructure
from atat_zoo.run import RunFolder, write_json

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
    """The scores of a run's text by a judge.

    Attributes:
        judge: its title.
        judge_table: its specification.
        sampler: the sampler's specification.
        step: optimizer steps behind the weights.
        ema: whether the weights are a moving average.
        number: texts that were written.
        length: their tokens, special ones included.
        seed: of the sampler.
        split: which held-out text stands beside it.
        model: the numbers of the written texts.
        data: the same of held-out texts, of the same length, and as many where there are so many.
    """

    judge: str
    judge_table: dict[str, Any]
    sampler: dict[str, Any]
    step: int
    ema: bool
    number: int
    length: int
    seed: int
    split: str
    model: Scores
    data: Scores

    def to_table(self) -> dict[str, Any]:
        """Return everything as a JSON object; what is not finite becomes null."""
        plain = attrs.asdict(self, recurse=False)
        table: dict[str, Any] = finite(plain | {"model": self.model.to_table(), "data": self.data.to_table()})
        return table

    def record(self, folder: RunFolder) -> None:
        """Write everything into a run folder; other settings make another file."""
        settings = [
            self.judge_table,
            self.sampler,
            self.split,
            self.model.mauve is None,
            list(self.model.overlap.copied),
        ]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        what = f"judged-{self.sampler['use']}-{self.number}x{self.length}-seed{self.seed}"
        write_json(folder.evaluations / f"{what}-step{self.step:08d}-{digest}.json", self.to_table())


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
    """Let a model write, score that and held-out text, and write it into the run folder.

    Args:
        model: of `Model.from_run(run)`.
        run: the run folder.
        judge: what scores the texts.
        judge_spec: its specification, for the run folder.
        sampler: a sampler's specification.
        spec: whose split is used.
        number: texts to write.
        length: tokens in a text; the training length if None.
        seed: of the sampler.
        mauve: whether MAUVE is computed, on the judge's features.
        sizes: the n of the n-grams that are looked for in the training text.
        progress: called with what is being done, and how much of how much.

    Raises:
        UserError: when something is missing or too short; see `score`, `mauve.check` and `generate`.
    """
    if mauve:
        mauves.check(number)
    tell = progress or (lambda what, done, total: None)
    length = length or model.context.length
    data, reference = _held_out(model, run, spec, number, length)
    if mauve and len(reference) < number:
        raise UserError(
            f"the {spec.split} text has {len(reference)} sequences, and MAUVE compares as many texts as were written; "
            f"lower --number to {len(reference)} or take another --split"
        )
    tell("writing", 0, number)
    made = model.sample(number, sampler=sampler, length=length, seed=seed)
    tell("writing", number, number)
    cost = Cost(
        nfe=made.sample.nfe, max_nfe=made.sample.max_nfe, seconds=made.seconds, tokens=made.sample.tokens.numel()
    )
    written = [row.cpu().numpy() for row in made.sample.tokens]
    known = [row.numpy() for row in data]
    tokenizer = model.tokenizer
    copied = overlap(
        [written, known],
        build(model.experiment),
        sizes=sizes,
        special=special_ids(tokenizer),
        progress=lambda done, total: tell("reading the training text", done, total),
    )
    real = [tokenizer.decode(ids.tolist()) for ids in known]
    distances: list[float | None] = [None, None]
    tell("judging", 0, 2)
    if mauve:
        features = judge.features([tokenizer.decode(ids.tolist()) for ids in reference])
        distances[0] = mauves.mauve(judge.features(made.texts), features)
        if reference is not data and len(data) == number:
            distances[1] = mauves.mauve(judge.features(real), features)
    of_model = score(made.texts, written, judge, tokenizer=tokenizer, overlap=copied[0], cost=cost, mauve=distances[0])
    tell("judging", 1, 2)
    of_data = score(real, known, judge, tokenizer=tokenizer, overlap=copied[1], mauve=distances[1])
    tell("judging", 2, 2)
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
    result.record(RunFolder(Path(run)))
    return result


def _held_out(
    model: Model, run: str | Path, spec: EvaluationSpec, number: int, length: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return held-out texts as tokens: those that are scored, and the reference of MAUVE.

    The two share no sequence where there are enough for both, so that the MAUVE of the first says what real text
    gets; else they are the same.
    """
    tokens, maskable, _ = held_out_text(model, run, spec.split, 2 * number)
    tokens, maskable = tokens[:, :length], maskable[:, :length].clone()
    if model.experiment.data.special == "sequence" and length < model.context.length:
        maskable[:, -1] = False  # where a written text of this length has EOS
    rows = [row[of_text] for row, of_text in zip(tokens, maskable, strict=True)]
    if len(rows) < 2 * number:
        rows = rows[:number]
        return rows, rows
    return rows[0::2], rows[1::2]
