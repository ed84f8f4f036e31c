"""Pairs of sentences with exchanged words, which reveal whether predictions depend on the context."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from atat_zoo.evaluation import track_progress
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task
from atat_zoo.registry import component, param
from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.parsing import from_toml, read

if TYPE_CHECKING:
    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model

_WORD = re.compile(r"([^\[\]]*)\[([^\[\]]+)\]([^\[\]]*)")


class Placed(NamedTuple):
    """A word in a context."""

    before: str
    word: str
    after: str


def pair_of(name: str, sentences: Any) -> tuple[Placed, Placed]:
    """Return the two sentences of a pair, or raise `ValueError` if the pair is invalid."""
    of = sentences if isinstance(sentences, list | tuple) else []
    match [_WORD.fullmatch(each) for each in of if isinstance(each, str)]:
        case [re.Match() as first, re.Match() as second] if first[2] != second[2]:
            return Placed(*first.groups()), Placed(*second.groups())
    remedy = 'write two sentences, each with a different word in brackets: ["We sat on the [bank]", …]'
    raise ValueError(f"the pair {clip(name)} is not valid; {remedy}")


@component
class ContextProbeTask(Task):
    """Comparison of a word's log p in its own context with its log p in the context of the pair's other sentence.

    `right` is the fraction of words that are more probable in their own context. `margin` is log p in a word's own
    context − log p in the other context, computed with the chain rule over the word's tokens. `importance` is the
    absolute difference in a word's importance between the contexts, if the model has an estimator. An autoregressive
    model reads only the left context.
    """

    name = "context_probe"
    summary = 'fraction of words that are more probable in their own context than in another, e.g. for senses of "bank"'

    file: str | None = param(None, help="TOML file with pairs of sentences (default: the pairs shipped with atat_zoo)")
    pairs: dict[str, tuple[str, ...]] = param(
        {}, help="pairs of sentences by name, each with the word in brackets; an alternative to a file"
    )

    def __attrs_post_init__(self) -> None:
        if self.file is not None and self.pairs:
            raise ValueError("file and pairs cannot be combined; leave one out")
        for name, sentences in self.pairs.items():
            pair_of(name, sentences)

    @override
    def absent(self) -> Iterator[str]:
        try:
            self._pairs()
        except UserError as error:
            yield str(error)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return {name: [list(placed) for placed in pair] for name, pair in self._pairs().items()}

    def _pairs(self) -> Mapping[str, tuple[Placed, Placed]]:
        table: Mapping[str, Any] = self.pairs
        if not table:
            path = Path(str(files("atat_zoo.evaluation.tasks") / "contexts.toml") if self.file is None else self.file)
            try:
                table = from_toml(read(path).decode())
            except (OSError, ValueError) as error:
                raise UserError(
                    f"file: {clip(path)} cannot be read: {clip(error)}; pass a TOML file of pairs"
                ) from None
        try:
            pairs = {name: pair_of(name, sentences) for name, sentences in table.items()}
        except ValueError as error:
            raise UserError(f"{clip(self.file or 'pairs')}: {error}") from None
        if not pairs:
            raise UserError(f"file: {clip(self.file or '')} does not contain a pair; add one")
        return pairs

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        import torch

        pairs = self._pairs()
        estimates = model.text_generator().denoiser.estimates_importance
        margins, changes = list[float](), list[float]()
        for one, other in track_progress(pairs.values(), progress):
            for mine, theirs in ((one, other), (other, one)):
                own, foreign = (_Row(model, Placed(at.before, mine.word, at.after)) for at in (mine, theirs))
                margins.append(own.log_likelihood() - foreign.log_likelihood())
                if estimates:
                    changes.append(abs(own.importance() - foreign.importance()))
        found = torch.tensor(margins, dtype=torch.float64)
        of = hashlib.sha256(json.dumps(self.inputs(model.experiment)).encode()).hexdigest()
        scores = {
            "right": Score.over("share of words", found > 0, of=of),
            "margin": Score.over("nats per word", found, of=of),
        }
        return scores | ({"importance": Score.over("change of importance", changes, of=of)} if estimates else {})


class _Row:
    """A word in a context, as a row that a model reads."""

    def __init__(self, model: Model, placed: Placed) -> None:
        from atat_zoo.generation.layout import frame_tokens

        self.model, self.text = model, "".join(placed)
        self.ids = model.tokenizer.encode(self.text)
        first, last = frame_tokens(model.tokenizer, model.experiment.data.special_tokens)
        self.row = [*first, *self.ids, *last]
        if len(self.row) > model.context.length:
            problem = f"has {len(self.row)} tokens including special tokens, more than the training length"
            raise UserError(
                f"the sentence {clip(repr(self.text))} {problem} {model.context.length}; leave the pair out"
            )
        # The tokens that contain a byte of the word.
        begin = len(placed.before.encode())
        end, at, sizes = begin + len(placed.word.encode()), 0, model.tokenizer.byte_counts()
        self.places = []
        for place, token in enumerate(self.ids):
            if at < end and at + int(sizes[token]) > begin:
                self.places.append(place)
            at += int(sizes[token])
        if at != len(self.text.encode()):
            problem = f"the tokenizer does not exactly encode the sentence {clip(repr(self.text))}"
            raise UserError(f"{problem}; write the sentence in the style of the training text")
        self.before = len(first)

    def log_likelihood(self) -> float:
        """Return log p of the word given the rest of the sentence, in nats."""
        import torch

        from atat_zoo.evaluation.tasks.infilling import log_likelihood

        context = self.model.context
        tokens = torch.tensor([self.row], device=context.device)
        starts = torch.tensor([self.before + self.places[0]], device=context.device)
        denoiser = self.model.text_generator("fp32").denoiser
        found = log_likelihood(denoiser, tokens, starts, len(self.places), mask_id=context.mask_id, right=True)
        return float(found.sum())

    def importance(self) -> float:
        """Return the mean importance of the word's tokens, in [0, 1]."""
        scores = self.model.importance(self.text)
        return sum(scores[place].value for place in self.places) / len(self.places)
