"""Judge models: language models that score texts from other models, each text independently of the others.

An experiment has no table for a judge model: pass it to `atat judge`, or set it in a metric or task that needs one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from atat_zoo.registry import component, param, values_of
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.experiment import Experiment


def judges_itself(judge: Any, run: str | Path) -> bool:
    """Return whether the judge (or None) is the run whose texts it would judge."""
    folder = judge.folder if judge else None
    return folder is not None and os.path.realpath(folder) == os.path.realpath(run)


class JudgeModel(Protocol):
    """A loaded judge model."""

    title: str  #: name of the judge in tables and in run folders

    def nats(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the NLL, float64 [n], and the number of judge tokens, int64 [n], of each text; 0 for an empty text.

        Raises:
            UserError: If `texts` is empty, or the tokenizer cannot encode one of them.
        """
        ...

    def features(self, texts: Sequence[str]) -> Tensor:
        """Return a feature vector per text, float32 [n, D], to compute distances between sets of texts.

        Raises:
            UserError: If `nats` would raise it, or if a text does not have any tokens.
        """
        ...


class Judge(Protocol):
    """A component of the kind `judge`, which builds a judge model."""

    name: str

    @property
    def folder(self) -> str | None:
        """The judge's run folder, or None if it is not a run; it is compared with the run whose texts are judged."""
        ...

    def build(self, device: str) -> JudgeModel:
        """Return the judge model on a device: `auto`, `cpu`, `gpu` or a torch device.

        Raises:
            UserError: If the judge's model is missing or cannot judge.
        """
        ...


@component
class RunJudge:
    """A finished run as a judge model; its objective must have an exact likelihood, such as `autoregressive`.

    Texts are encoded with the run's tokenizer. A text longer than the run's sequences is split into chunks that are
    scored separately, so the first tokens of a chunk have little context. If the run's sequences begin with BOS, so
    does every chunk, and BOS is not counted; if they end with EOS, a chunk is one token shorter. The feature of a
    text is the mean of the hidden states that predict its tokens.
    """

    name = "run"
    summary = "a finished run with an exact likelihood, such as an autoregressive one"

    path: str = param(help="run folder")

    @property
    def folder(self) -> str:
        """Return the run folder."""
        return self.path

    def check(self, experiment: Experiment | None = None) -> Iterator[Problem]:
        """Yield a `Problem` if the run only bounds likelihoods; a run that does not exist is reported by `build`."""
        from atat_zoo.experiment import from_run
        from atat_zoo.experiment.runs import RunFolder

        if not RunFolder(Path(self.path)).resolved.is_file():
            return
        objective = from_run(Path(self.path)).parts["objective"]
        if not objective.exact:
            problem = f"the run {self.path} has the objective {objective.name!r}, which only bounds a text's likelihood"
            remedy = "choose a run with an exact likelihood, such as an autoregressive one"
            yield Problem("judge.path", f"{problem}; {remedy}")

    def build(self, device: str) -> JudgeModel:
        """Return the judge model on a device; see `Judge`."""
        for problem in self.check():  # before torch is imported
            raise UserError(str(problem))
        from atat_zoo.evaluation.judge_models import RunScorer
        from atat_zoo.generation.model import Model

        return RunScorer(Model.from_run(self.path, device), Path(self.path).name)


@component
class HuggingFaceJudge:
    """A causal language model from the `transformers` library, given by its name on the hub or its folder.

    Texts are encoded with the model's tokenizer and split into chunks of `length` tokens, including BOS, that are
    scored separately. Many implementations do not score the first token of a text, because GPT-2 has no context for it;
    set `begin = "none"` to do the same for each chunk. MAUVE's published features are the hidden state of the last
    token; set `pooling = "last"` to use them. Requires `pip install atat-zoo[judge]`. Weights are loaded only from
    safetensors, and remote code is never executed.
    """

    name = "huggingface"
    summary = "a causal language model from the Hugging Face hub or a folder, such as gpt2-large"
    refs = ("https://huggingface.co/docs/transformers", "arXiv:2102.01454")
    package = ("transformers", "atat-zoo[judge]")
    folder = None

    model: str = param(help="model name on the hub, or a local folder")
    length: int | None = param(None, help="tokens per chunk, including BOS (default: the model's maximum)", ge=2)
    revision: str | None = param(None, help="commit, tag or branch on the hub (default: main)")
    begin: Literal["bos", "none"] = param(
        "bos", help="context of a chunk's first token: `bos`, or `none`, which excludes this token from the score"
    )
    pooling: Literal["mean", "last"] = param(
        "mean", help="feature vector of a text: mean hidden state, or hidden state of the last token in its first chunk"
    )
    batch_size: int = param(8, help="chunks per batch", ge=1)

    def build(self, device: str) -> JudgeModel:
        """Return the judge model on a device; see `Judge`."""
        from atat_zoo.evaluation.judge_models import HuggingFaceScorer

        return HuggingFaceScorer(device, **values_of(self))
