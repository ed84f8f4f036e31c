"""The tasks `line_infilling` and `token_classes`, on held-out files of Python code.

A sequence has L tokens. A gap is a line of code in a window of W = L − 2 tokens, of which W // 2 precede the line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from typing_extensions import override

from atat_zoo.evaluation import batches, progress_of_part
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of, sampling_inputs
from atat_zoo.evaluation.tasks.infilling import SHARE_OF_TEXTS
from atat_zoo.registry import component, component_base, component_param, param
from atat_zoo.registry.spec import evolve, fields_of
from atat_zoo.system.errors import Problem, UserError
from atat_zoo_code.fill_in_the_middle import FillInTheMiddleTransform, middle_last
from atat_zoo_code.source_tokens import CLASSES, Span, byte_offsets, code_lines, parses, token_classes, token_span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atat_zoo.data.corpora import Corpus
    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model
    from atat_zoo.generation.samplers import Sampler

FILES = 1000  # maximum number of held-out files that are read
Given = Literal["both sides", "left side"]


class Document(NamedTuple):
    """A file of Python code that parses, in a model's tokens."""

    text: str
    ids: list[int]
    ends: NDArray[np.int64]  # the last byte of each token plus one


class Gap(NamedTuple):
    """A line of a document, the window around it, and where the line is in the document's text."""

    text: str
    line: Span
    left: list[int]
    true: list[int]
    right: list[int]


class Row(NamedTuple):
    """A sequence with a gap to fill: tokens with masks, and the positions of the gap."""

    tokens: list[int]
    gap: slice


@component_base
class _OnCode(Task):
    """Base class for tasks on the held-out files of a corpus."""

    corpus: Corpus | None = component_param("corpus", None, help="corpus with Python files (default: the run's)")
    split: Literal["validation", "test"] = param("test", help="split to evaluate")

    def documents(self, model: Model) -> list[Document]:
        """Return the first 1,000 files that parse and that the tokenizer restores; raise a `UserError` without any."""
        corpus, tokenizer = self.corpus or model.experiment.parts["corpus"], model.tokenizer
        sizes, found = tokenizer.byte_counts(), []
        for text in itertools.islice(corpus.documents(self.split), FILES):
            if parses(text) and tokenizer.decode(ids := tokenizer.encode(text)) == text:
                found.append(Document(text, ids, np.cumsum(sizes[ids], dtype=np.int64)))
        if not found:
            raise UserError(
                f"corpus {corpus.name!r} has no file in its {self.split} split that is Python code and that the "
                "tokenizer restores; set the task's corpus to Python files"
            )
        return found


@component
class LineInfillingTask(_OnCode):
    """Infilling of whole lines of held-out Python code, given the text on both sides or only that on the left.

    A gap is an indented line of code with the line end before it, in a window of W tokens, W // 2 of them before the
    line. The number of its tokens is given, to autoregressive models, too. `exact match` is the fraction of lines that
    are filled with the true text, and `parses` the fraction of files that `ast.parse` accepts with the filled line.
    Both are also reported by the number of tokens of the line. A model that predicts from left to right reads the right
    side only if it was trained with the transform `fill_in_the_middle`; otherwise its scores are those of the left
    side. Other models get the left side alone by masking the right side. By default, the sampler is the run's with
    temperature 0.
    """

    name = "line_infilling"
    summary = "infilling of lines of Python code: exact match, and whether the file parses"
    refs = ("arXiv:2204.05999", "arXiv:2207.14255")

    lines: int = param(512, help="maximum number of lines, evenly spaced; 0 means all", ge=0)
    max_tokens: int = param(32, help="maximum number of tokens of a line, including its indentation", ge=1)
    sampler: Sampler | None = component_param(
        "sampler", None, help="sampler to infill with (default: the run's, with temperature 0)"
    )

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if no right side is left in a window, and the experiment's conflicts with the sampler."""
        window = experiment.data.length - 2
        if self.max_tokens >= (most := window - window // 2):
            problem = f"a line of {self.max_tokens} tokens leaves no right side in a window of {window}"
            yield Problem("evaluation.tasks", f"{problem}; set max_tokens to less than {most}")
        if self.sampler is not None:
            yield from conflicts_of(experiment, sampler=self.sampler)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        corpus = None if self.corpus is None else self.corpus.fingerprint()
        return [*sampling_inputs(self.sampler, experiment), corpus]

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        from atat_zoo.evaluation.held_out_text import digest

        gaps = self.gaps(model)
        sides, words = sides_of(model), model.text_generator().words
        scores: dict[str, Score] = {}
        bands = [band(len(gap.true)) for gap in gaps]
        for number, side in enumerate(sides):
            rows = [row_of(gap, side, model) for gap in gaps]
            told = progress_of_part(progress, number * len(gaps), len(sides) * len(gaps))
            fills = map(words.text_of, self.fill(model, rows, seed=seed, progress=told))
            exact, parsed = [], []
            for gap, fill in zip(gaps, fills, strict=True):
                exact.append(float(fill == gap.text[slice(*gap.line)]))
                parsed.append(float(parses(gap.text[: gap.line.begin] + fill + gap.text[gap.line.end :])))
            for name, values in (("exact match", exact), ("parses", parsed)):
                for of in ("", *sorted(set(bands), key=lambda each: int(each.partition("-")[0]))):
                    inside = [i for i, each in enumerate(bands) if of in ("", each)]
                    of_items = digest(*map(_tensor, (gaps[i].left + gaps[i].true + gaps[i].right for i in inside)))
                    key = ", ".join([name, side, *([f"{of} tokens"] if of else [])])
                    scores[key] = Score.over(SHARE_OF_TEXTS, [values[i] for i in inside], of=of_items)
        return scores

    def gaps(self, model: Model) -> list[Gap]:
        """Return at most `lines` gaps of the held-out files, in order; raise a `UserError` without any."""
        from atat_zoo.data.sequences import evenly

        window, found = model.context.length - 2, []
        before = window // 2
        for text, ids, ends in self.documents(model):
            offsets = byte_offsets(text)
            for line in code_lines(text):
                span = token_span(line, offsets, ends)
                if span is None or span.end - span.begin > self.max_tokens:
                    continue
                first, last = span.begin - before, span.begin - before + window
                if first >= 0 and last <= len(ids):
                    sides = (ids[first : span.begin], ids[slice(*span)], ids[span.end : last])
                    found.append(Gap(text, line, *sides))
        if not found:
            raise UserError(
                f"no line of the held-out files has at most {self.max_tokens} tokens and {before} tokens before it; "
                "raise max_tokens, or set the task's corpus to longer files"
            )
        return [found[i] for i in evenly(len(found), self.lines)]

    def fill(self, model: Model, rows: Sequence[Row], *, seed: int, progress: Progress = None) -> list[list[int]]:
        """Return the tokens in the gap of each row; the random numbers of row i are a function of (seed, i)."""
        parts, batch = model.experiment.parts, model.experiment.evaluation.batch_size
        sampler = self.sampler or greedy(parts["sampler"])
        # In float32, because with less precision the generated text would depend on the batch size.
        text_generator = parts["guidance"].guide(model.text_generator("fp32"))
        by_length: dict[int, list[int]] = {}
        for i, row in enumerate(rows):
            by_length.setdefault(len(row.tokens), []).append(i)
        filled: dict[int, list[int]] = {}
        for alike in by_length.values():
            for some in batches(len(alike), batch, progress_of_part(progress, len(filled), len(rows))):
                numbers = alike[some]
                tokens = _tensor([rows[i].tokens for i in numbers])
                made = text_generator.fill(sampler, tokens, rows=_tensor(numbers), seed=seed, batch_size=batch).tokens
                filled |= {i: ids[rows[i].gap] for i, ids in zip(numbers, made.tolist(), strict=True)}
        return [filled[i] for i in range(len(rows))]


def sides_of(model: Model) -> tuple[Given, ...]:
    """Return what a model can be given: only the left side, unless it reads the text after a gap."""
    return ("both sides", "left side") if _moves_middle(model) or not _causal(model) else ("left side",)


def row_of(gap: Gap, side: Given, model: Model) -> Row:
    """Return the sequence in which a model fills a gap."""
    masks, before = [model.context.mask_id] * len(gap.true), len(gap.left)
    if side == "both sides" and _moves_middle(model):
        tokens = middle_last(gap.left, gap.right, masks, model.tokenizer)
        return Row(tokens, slice(len(tokens) - len(masks), len(tokens)))
    right = gap.right if side == "both sides" else [] if _causal(model) else [model.context.mask_id] * len(gap.right)
    return Row([*gap.left, *masks, *right], slice(before, before + len(masks)))


def _causal(model: Model) -> bool:
    return model.text_generator().denoiser.block_size is not None


def _moves_middle(model: Model) -> bool:
    return any(isinstance(each, FillInTheMiddleTransform) for each in model.experiment.data.transforms)


def greedy(sampler: Any) -> Any:
    """Return a sampler with temperature 0, or unchanged if it has no temperature."""
    names = {field.name for field in fields_of(type(sampler))}
    if "token_sampling" in names:
        from atat_zoo.generation.samplers.token_sampling import CategoricalTokenSampling

        return evolve(sampler, token_sampling=CategoricalTokenSampling(temperature=0.0))
    return evolve(sampler, temperature=0.0) if "temperature" in names else sampler


def band(tokens: int) -> str:
    """Return the range of lengths to which a line belongs: 1-4, 5-8, 9-16, 17-32 and so on."""
    power = max(2, (tokens - 1).bit_length())
    return f"{1 if power == 2 else 2 ** (power - 1) + 1}-{2**power}"


@component
class TokenClassesTask(_OnCode):
    """The mean loss and importance of the tokens of each class in held-out Python code, and each class's share.

    The classes are those of Python's `tokenize`: a token belongs to the class of its first visible character. The loss
    is that of a masked token under the masks of the bound in `[evaluation]` or, for an exact likelihood, its NLL.
    Importance is reported for a run with an estimator.
    """

    name = "token_classes"
    summary = "loss and importance of Python's keywords, identifiers, operators and other classes of tokens"
    refs = ("https://docs.python.org/3/library/tokenize.html",)

    sequences: int = param(512, help="maximum number of sequences, evenly spaced; 0 means all", ge=0)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        from atat_zoo.registry.spec import unstructure

        evaluation = experiment.evaluation
        corpus = (self.corpus or experiment.parts["corpus"]).fingerprint()
        return [corpus, unstructure(evaluation.bound), evaluation.mask_samples]

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        import torch

        from atat_zoo.data.sequences import evenly
        from atat_zoo.evaluation.held_out_text import digest
        from atat_zoo.evaluation.likelihood import measure

        rows: list[tuple[list[int], list[int]]] = []
        length = model.context.length
        for text, ids, ends in self.documents(model):
            classes = token_classes(text, ends).tolist()
            rows += [
                (ids[at : at + length], classes[at : at + length]) for at in range(0, len(ids) - length + 1, length)
            ]
        if not rows:
            raise UserError(f"no held-out file has {length} tokens; set the task's corpus to longer files")
        rows = [rows[i] for i in evenly(len(rows), self.sequences)]
        tokens, classes = (_tensor(list(each)) for each in zip(*rows, strict=True))
        spec = evolve(model.experiment.evaluation, metrics=())
        maskable = torch.ones_like(tokens, dtype=torch.bool)
        found = measure(model.module, tokens, maskable, spec, seed=seed, progress=progress)
        seen = found.token_loss.isfinite()
        values: Mapping[str, Any] = {"loss": found.token_loss, "importance": found.importance}
        quantities = {"loss": "nats per token", "importance": "importance"}
        of, scores = digest(tokens, seen), dict[str, Score]()
        for kind, name in enumerate(CLASSES):
            of_class = classes == kind
            if not (inside := seen & of_class).any():
                continue
            scores[f"{name}, share"] = Score.over("share of tokens", of_class.sum(1), maskable.sum(1), of=of)
            for what, value in values.items():
                if value is not None:
                    sums = torch.where(inside, value, 0).double().sum(1)
                    scores[f"{name}, {what}"] = Score.over(quantities[what], sums, inside.sum(1), of=of)
        return scores


def _tensor(values: Sequence[Any]) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int64)
