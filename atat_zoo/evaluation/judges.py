"""Judges: language models that score text which another model wrote.

An experiment has no table for a judge; `atat judge` names one for a finished run.
The score of a text does not depend on the texts beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from atat_zoo.errors import UserError
from atat_zoo.registry import component, param
from atat_zoo.registry.spec import values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class JudgeModel(Protocol):
    """A judge that is ready.

    Attributes:
        title: its name in tables and in run folders.
    """

    title: str

    def nats(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return −log p of each text and the tokens that it is over, the judge's own: float64 [n] and int64 [n].

        A text without tokens costs nothing.

        Raises:
            UserError: when there is no text, or the tokenizer cannot write one.
        """
        ...

    def features(self, texts: Sequence[str]) -> Tensor:
        """Return a vector for each text, float32 [n, D], for distances between sets of texts.

        Raises:
            UserError: as `nats` does, and for a text without tokens.
        """
        ...


class Judge(Protocol):
    """A component of the kind judge."""

    name: str

    @property
    def folder(self) -> str | None:
        """The run folder whose model it is, since a run does not judge its own text; None for another model."""
        ...

    def build(self, device: str) -> JudgeModel:
        """Return the judge.

        Args:
            device: `cpu`, `gpu`, or as torch writes it.

        Raises:
            UserError: when its model is not there, or is no judge.
        """
        ...


@component
class RunJudge:
    """A finished run whose likelihood is exact: its objective says `exact = True`, as `autoregressive` does.

    Texts are written in the run's own tokens, whatever tokens they were generated
    in. One that is longer than the run's sequences is cut into chunks of L tokens,
    each scored by itself, so the first tokens of a chunk are predicted from little.
    Where the run's sequences begin with BOS, so does every chunk, and BOS is not
    counted. The feature of a text is the mean of the hidden states that predict its tokens.
    """

    name = "run"
    summary = "a finished run with an exact likelihood, such as an autoregressive one"

    path: str = param(help="the run folder")

    @property
    def folder(self) -> str:
        """Return the run folder."""
        return self.path

    def build(self, device: str) -> JudgeModel:
        """See `Judge`."""
        from atat_zoo.experiment import from_table
        from atat_zoo.run import RunFolder

        folder = RunFolder(Path(self.path))
        objective = from_table(folder.table(), where=str(folder.resolved)).parts["objective"]
        # Checked before torch is imported.
        if not objective.exact:
            raise UserError(
                f"judge.path: the run {self.path} has the objective {objective.name!r}, which only bounds a text's "
                "likelihood; name a run whose likelihood is exact, such as an autoregressive one"
            )
        from atat_zoo.evaluation.judge_modules import RunScorer
        from atat_zoo.model import Model

        return RunScorer(Model.from_run(self.path, device), Path(self.path).name)


@component
class HuggingFaceJudge:
    """A causal language model in the format of the `transformers` library, by its name on the hub or its folder.

    Texts are written in the model's own tokens and cut into chunks of `length`, BOS
    included, each scored by itself. Much code leaves out the first token
    of a text, which GPT-2 was given nothing to predict from: `begin = "none"` does so.
    MAUVE's published features are the hidden state of the last token: `pooling = "last"`.

    Needs `pip install atat-zoo[judge]`. Weights are read from safetensors only,
    and no code of a model's author is run.
    """

    name = "huggingface"
    summary = "a causal language model of the Hugging Face hub, such as gpt2-large"
    refs = ("https://huggingface.co/docs/transformers", "arXiv:2102.01454")
    folder = None

    model: str = param(help="name on the hub, or folder")
    length: int | None = param(None, help="tokens in a chunk; as many as the model can read when absent", ge=2)
    revision: str | None = param(None, help="commit, tag or branch of the hub; its main branch when absent")
    begin: Literal["bos", "none"] = param(
        "bos", help="what the first token of a chunk is predicted from: BOS, or nothing, and then it is not counted"
    )
    pooling: Literal["mean", "last"] = param(
        "mean", help="feature of a text: the mean of its hidden states, or the one of the last token of its first chunk"
    )
    batch_size: int = param(8, help="chunks at once", ge=1)

    def build(self, device: str) -> JudgeModel:
        """See `Judge`."""
        from atat_zoo.evaluation.judge_modules import HuggingFaceScorer

        numbers = values_of(self)
        return HuggingFaceScorer(numbers.pop("model"), device, **numbers)
