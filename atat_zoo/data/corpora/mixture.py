"""Several corpora as one, in given proportions."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

import attrs
from typing_extensions import override

from atat_zoo.data import Split
from atat_zoo.data.corpora import Corpus
from atat_zoo.errors import UserError
from atat_zoo.registry import component, param, parts
from atat_zoo.registry.spec import unstructure


@component
class MixtureCorpus(Corpus):
    """Training text of several corpora in shares w_i of the characters; held-out text is all of theirs.

    The next document is always of the corpus that is furthest behind its share: the smallest of its characters over
    w_i, the first of equals. So the shares hold from the beginning, as far as whole documents allow, and the same
    corpora give the same order. `until` says when an epoch ends: when the first corpus is exhausted, so that no
    document is repeated, or when the last is, where the others begin again.
    """

    name = "mixture"
    summary = "several corpora in given proportions"
    refs = ("arXiv:2101.00027",)

    of: tuple[Corpus, ...] = parts("corpus", attrs.NOTHING, help="the corpora, as a list of tables {use = …}")
    weights: tuple[float, ...] = param((), help="share of the characters of each; equal when absent", gt=0)
    until: Literal["first", "all"] = param("first", help="an epoch ends with the first exhausted corpus, or with all")

    def __attrs_post_init__(self) -> None:
        if len(self.of) < 2:
            raise ValueError('of names no two corpora; name them, as in [{use = "sotu"}, {use = "files", …}]')
        if self.weights and len(self.weights) != len(self.of):
            raise ValueError(f"weights has {len(self.weights)} numbers for {len(self.of)} corpora; give one each")

    @override
    def documents(self, split: Split) -> Iterator[str]:
        if split != "train":
            yield from chain.from_iterable(corpus.documents(split) for corpus in self.of)
            return
        weights = self.weights or (1.0,) * len(self.of)
        streams = [corpus.documents("train") for corpus in self.of]
        characters, ended = [0] * len(streams), [False] * len(streams)
        while True:
            i = min(range(len(streams)), key=lambda i: characters[i] / weights[i])
            text = next(streams[i], None)
            if text is None:
                ended[i] = True
                if self.until == "first" or all(ended):
                    return
                if not characters[i]:
                    raise UserError(f"corpus.of: corpus {self.of[i].name!r} has no training text; leave it out")
                streams[i] = self.of[i].documents("train")
                continue
            characters[i] += len(text)
            yield text

    @override
    def fingerprint(self) -> dict[str, Any]:
        return {"of": [corpus.fingerprint() for corpus in self.of]}

    @override
    def identity(self) -> dict[str, Any]:
        return {**unstructure(self), "of": [corpus.identity() for corpus in self.of]}

    @override
    def stamp(self) -> Any:
        return [corpus.stamp() for corpus in self.of]
