"""The text on which a model is evaluated: held-out text of its run, or the text of a different corpus."""

import hashlib
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from atat_zoo.data import Split
from atat_zoo.data.build import build
from atat_zoo.data.corpora.text_files import NamedFiles
from atat_zoo.data.sequences import Sequences, alone, corpus_sequences, held_out_sequences
from atat_zoo.data.shard_manifest import load_counts
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.evaluation.judges import judges_itself
from atat_zoo.experiment import EvaluationSpec, conflicts
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.experiment.runs.model_files import TOKENIZER
from atat_zoo.generation.model import Model
from atat_zoo.system.digests import Stamp, sha256_of_each
from atat_zoo.system.errors import Note, UserError
from atat_zoo.system.parsing import read


@attrs.frozen(kw_only=True, eq=False)
class Text:
    """The text on which a model is evaluated: n sequences of L tokens."""

    tokens: Tensor  # int64 [n, L]
    maskable: Tensor  # bool [n, L]; in dialogues, only the answers
    counted: Tensor  # bool [n, L], the tokens over which metrics are averaged: see `counted_of`
    data: Path | None  # folder of the shards; None if the corpus is not the experiment's
    split: str  # name of the split; `all` for the whole text of a corpus
    corpus: str = ""  # the source of the text; empty for the experiment's own
    documents: Tensor | None = None  # for packed dialogues, see `data.sequences.Sequences`

    @property
    def counts(self) -> Tensor | None:
        """How often each id occurs in the training text, int64 [vocabulary size]; None for a different corpus."""
        return None if self.data is None else torch.from_numpy(load_counts(self.data))


def text_of(
    model: Model,
    run: str | Path,
    spec: EvaluationSpec,
    *,
    corpus: Any = None,
    corpus_name: str = "",
    all_of_corpus: bool = False,
    packed: bool = False,
) -> Text:
    """Return the text on which to evaluate `Model.from_run(run)`; raise `UserError` if it or `spec` cannot be used.

    `corpus` replaces the experiment's corpus, and `corpus_name` names it in the results. `all_of_corpus` selects all
    of its splits, with a warning if the run was trained on it. Pass `packed` if the caller reads `documents`, which
    separate packed dialogues; otherwise, packed dialogues raise `UserError`.
    """
    check_evaluation(model, run, spec)
    if corpus is None:
        return held_out_text(model, run, spec.split, spec.sequences, packed=packed)
    data = model.experiment.data
    found = corpus_sequences(
        corpus,
        model.tokenizer,
        "all" if all_of_corpus else spec.split,
        length=model.context.length,
        special=data.special_tokens,
        rows=data.packing,
        form=data.format,
        limit=spec.sequences,
    )
    if all_of_corpus and _trained_on(model.experiment.parts["corpus"], corpus):
        said = f"{corpus_name} contains training text of {run}, so its perplexity is lower than that of new text"
        warnings.warn(f"{said}; pass text that the model was not trained on", Note, stacklevel=2)
    return _text(model, found, packed, "all" if all_of_corpus else spec.split, corpus=corpus_name)


def _trained_on(own: Any, corpus: Any) -> bool:
    """Whether a file of a corpus has the content of a training file of the experiment's `own` corpus."""
    parts = [each for each in getattr(own, "components", (own,)) if isinstance(each, NamedFiles)]
    with warnings.catch_warnings(), suppress(UserError):  # the training files may have been moved
        warnings.simplefilter("ignore", Note)
        if parts and isinstance(corpus, NamedFiles):
            evaluated = [Stamp.of(path) for paths in corpus.files().values() for path in paths]
            sizes = {file.size for file in evaluated}
            trained = [file for each in parts for file in map(Stamp.of, each.files()["train"]) if file.size in sizes]
            return bool(trained) and not {*sha256_of_each(trained)}.isdisjoint(sha256_of_each(evaluated))
    return False


def held_out_text(model: Model, run: str | Path, split: Split, sequences: int, *, packed: bool = False) -> Text:
    """Return a run's held-out text, building shards if needed; raise `UserError` if the text is missing or differs."""
    if (origin := RunFolder(Path(run)).imported()) and not origin.get("corpus"):
        raise UserError(f"{run} was imported without a corpus; pass --corpus, or import it again with corpus.use=NAME")
    data = build(model.experiment)
    if (data / TOKENIZER).read_bytes() != read(RunFolder(Path(run)).model_at(model.step) / TOKENIZER):
        problem = f"{data} and {run} have different tokenizers, because the corpus has changed since training"
        raise UserError(f"{problem}; restore the old text, or train again")
    return _text(model, held_out_sequences(data, split, sequences), packed, split, data=data)


def _text(
    model: Model, found: Sequences, packed: bool, split: str, *, data: Path | None = None, corpus: str = ""
) -> Text:
    if not packed:
        alone(found)
    read = (found.tokens != model.tokenizer.unknown) & found.maskable
    if not byte_counts(model.tokenizer, found.tokens, read).any():
        raise UserError(
            f"{corpus or data}: the model's tokenizer cannot encode any byte of this text, so bits per byte are "
            "undefined; pass text that it can encode, or import the model with its own tokenizer"
        )
    counted = counted_of(model.experiment.data.format, model.tokenizer, found.tokens, found.maskable)
    return Text(**found._asdict(), counted=counted, data=data, split=split, corpus=corpus)


def counted_of(form: str, tokenizer: TokenizerModel, tokens: Tensor, maskable: Tensor) -> Tensor:
    """Return a mask, bool [n, L], of the tokens over which metrics are averaged.

    The mask contains the maskable tokens except the EOS tokens that pad a dialogue, whose NLL is near 0: only the first
    EOS after a dialogue is counted.
    """
    if form != "chat" or tokenizer.eos is None:
        return maskable
    ends = tokens == tokenizer.eos
    return maskable & ~(ends & F.pad(ends, (1, 0))[:, :-1])


def check_evaluation(model: Model, run: str | Path, spec: EvaluationSpec) -> None:
    """Raise `UserError` if the model's components do not allow the evaluation, or if a metric's judge is the run."""
    problems = [str(problem) for problem in conflicts(attrs.evolve(model.experiment, evaluation=spec))]
    problems += [
        f"{metric.title}: a run cannot judge its own text; choose another judge"
        for metric in spec.metrics
        if judges_itself(getattr(metric, "judge", None), run)
    ]
    if problems:
        raise UserError("\n".join(f"{run}: {problem}" for problem in problems))


def special_ids(tokenizer: TokenizerModel) -> list[int]:
    """Return the ids of BOS and EOS, if the tokenizer has them."""
    return [i for i in (tokenizer.bos, tokenizer.eos) if i is not None]


def byte_counts(tokenizer: TokenizerModel, tokens: Tensor, maskable: Tensor) -> Tensor:
    """Return the number of UTF-8 bytes, int64 [n], of the maskable tokens in each sequence [n, L]."""
    return torch.where(maskable, torch.from_numpy(tokenizer.byte_counts())[tokens], 0).sum(1)


def digest(*tensors: Tensor) -> str:
    """Return the SHA-256 of the tensors' contents as a hexadecimal string."""
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors)).hexdigest()
