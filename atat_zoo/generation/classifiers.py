"""Classifiers for guidance, which return the log-probability that a sequence belongs to a class."""

from __future__ import annotations

import importlib
import itertools
import math
import os
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from atat_zoo.data.corpora import Corpus
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.registry import component, component_param, param
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


class ClassifierModel(Protocol):
    """A classifier that is ready to score sequences of tokens, whose ids are below V, and masks, whose id is V."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return log p(class | z), float [M], for sequences z of any length, int64 [M, L]."""
        ...


@runtime_checkable
class Differentiable(ClassifierModel, Protocol):
    """A classifier with an embedding, for which one gradient estimates the effect of every token."""

    table: Tensor  # the embedding, float [V + 1, E], with the mask's in the last row

    def embedded(self, x: Tensor) -> Tensor:
        """Return the differentiable log p(class | z), [M], from the embedding of z, [M, L, E]."""
        ...


class Classifier(Protocol):
    """A component of the kind `classifier`."""

    name: str

    def build(self, tokenizer: TokenizerModel, length: int) -> ClassifierModel:
        """Return the classifier, trained if necessary, for the guided model's tokenizer and sequence length L."""
        ...


@component
class NaiveBayesClassifier:
    """A naive Bayes topic classifier, trained to recognise the passages of a corpus that contain given words.

    Passages are as long as the model's sequences, and a passage is on-topic if it contains one of the words. Each token
    v has the weight w_v = log p(v | topic) − log p(v | other), estimated from token counts to which `smoothing` is
    added. Then log p(topic | z) = log σ(logit(prior) + Σ w) over the visible tokens (multinomial naive Bayes). The
    classifier assumes that tokens are independent, so it soon becomes overconfident, and guidance then has little
    effect; a lower prior helps.
    """

    name = "naive_bayes"
    summary = "naive Bayes topic classifier, trained to recognise passages that contain given words"
    refs = ("https://www.cs.cmu.edu/~knigam/papers/multinomial-aaaiws98.pdf",)

    words: tuple[str, ...] = param(help="words or phrases that mark a passage as on-topic")
    corpus: Corpus = component_param("corpus", "sotu", help="corpus whose training split provides the token counts")
    documents: int = param(1000, help="maximum number of documents to read", ge=1)
    smoothing: float = param(1.0, help="additive smoothing: the constant added to every token count", gt=0)
    prior: float | None = param(
        None,
        help="prior p(topic), which is the probability for a text without visible tokens; default: the fraction of "
        "passages that are on-topic",
        gt=0,
        lt=1,
    )

    def build(self, tokenizer: TokenizerModel, length: int) -> ClassifierModel:
        """Return a classifier trained on the corpus; raise a `UserError` if all or no passages contain a given word."""
        if not self.words:
            raise UserError('classifier naive_bayes has no words; set at least one, as in words=["peace"]')
        import torch

        from atat_zoo.diffusion.terms import Terms

        terms = Terms(tokenizer, self.words, longest=length, key="classifier.words")
        # Token counts in passages without and with a term, [2, V], and the numbers of these passages.
        tokens = torch.zeros(2, tokenizer.vocabulary_size, dtype=torch.float64)
        passages = [0, 0]
        for document in itertools.islice(self.corpus.documents("train"), self.documents):
            ids = torch.tensor(tokenizer.encode(document), dtype=torch.int64)
            rows = ids[: len(ids) // length * length].view(-1, length)
            named = terms.occurrences(rows).any(1)
            for which, mine in enumerate((rows[~named], rows[named])):
                tokens[which] += torch.bincount(mine.flatten(), minlength=tokenizer.vocabulary_size)
                passages[which] += len(mine)
        for which, name in enumerate(("every", "no")):
            if not passages[which]:
                raise UserError(
                    f"classifier naive_bayes: {name} passage of {length} tokens contains one of the words "
                    f"{', '.join(self.words)}; set different words, or raise `documents`"
                )
        prior = passages[1] / sum(passages) if self.prior is None else self.prior
        tokens += self.smoothing
        share = (tokens / tokens.sum(1, keepdim=True)).log()
        return BagOfTokens(share[1] - share[0], math.log(prior / (1 - prior)))


class BagOfTokens:
    """The classifier log p(class | z) = log σ(bias + Σ_i w(z_i)), differentiable in an embedding of width 1."""

    def __init__(self, weights: Tensor, bias: float) -> None:
        from torch.nn.functional import pad

        self.table, self.bias = pad(weights.float(), (0, 1))[:, None], bias

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return log p(class | z), float32 [M], for sequences z, int64 [M, L]."""
        self.table = self.table.to(tokens.device)
        return self.embedded(self.table[tokens])

    def embedded(self, x: Tensor) -> Tensor:
        """Return log p(class | z), [M], from the embedding of z, [M, L, 1]."""
        from torch.nn.functional import logsigmoid

        self.table = self.table.to(x.device)  # so that callers that read it at every step need not move it
        return logsigmoid(self.bias + x[:, :, 0].sum(1))


# The paths that may be imported: an experiment file from somebody else must not run arbitrary code.
ALLOWED = "ATAT_ZOO_FUNCTIONS"


@component
class FunctionClassifier:
    """A user-defined Python function that maps a list of texts to a list of log p(class | text).

    Importing a module runs it, so a path is imported only if the comma-separated environment variable
    ATAT_ZOO_FUNCTIONS contains it: a downloaded file cannot set this variable. To share a classifier, put it in a
    plugin.
    """

    name = "function"
    summary = "a Python function that maps texts to log-probabilities, given by its import path"

    path: str = param(
        help="import path, as module:function, which the environment variable ATAT_ZOO_FUNCTIONS must also list"
    )
    blank: str = param("", help="text that replaces each span of masked tokens")

    def build(self, tokenizer: TokenizerModel, length: int) -> ClassifierModel:
        """Return a classifier that decodes tokens and calls the function; raise a `UserError` if its import fails."""
        import torch

        function = _imported(self.path)
        mask_id = tokenizer.vocabulary_size

        def text(ids: list[int]) -> str:
            runs = itertools.groupby(ids, key=lambda i: i == mask_id)
            return "".join(self.blank if masked else tokenizer.decode(run) for masked, run in runs)

        def classify(tokens: Tensor) -> Tensor:
            given = function([text(ids) for ids in tokens.tolist()])
            try:
                result = torch.as_tensor(given, dtype=torch.float32, device=tokens.device)
            except (TypeError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"guidance.classifier.path: {self.path} must return a log-probability for each text: {error}"
                ) from error
            if result.shape != tokens.shape[:1] or bool((result > 0).any() | result.isnan().any()):
                raise UserError(
                    f"guidance.classifier.path: {self.path} must return a log-probability, at most 0, "
                    f"for each of {len(tokens)} texts"
                )
            return result

        return classify


def _imported(path: str) -> Any:
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise UserError(f"guidance.classifier.path: expected module:function, got {path!r}")
    if path not in [allowed.strip() for allowed in os.environ.get(ALLOWED, "").split(",")]:
        raise UserError(
            f"guidance.classifier.path: {path} would run code that you have not allowed; "
            f"if you trust it, put {ALLOWED}={path} before the command"
        )
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"guidance.classifier.path: {path} cannot be imported: {error}; correct the path or PYTHONPATH"
        ) from error
    if not callable(function):
        raise UserError(f"guidance.classifier.path: {path} is not a function; set the path of a function")
    return function
