"""The checks of objectives, backbones, bounds, corpora and tokenizers name the promise that a broken part breaks."""

from types import SimpleNamespace

import broken_models as broken
import pytest
from torch import nn

from atat_zoo import testing
from atat_zoo.errors import UserError


def caught(check, part, promise):
    with pytest.raises(AssertionError, match=promise):
        check(part)


@pytest.mark.parametrize("name", broken.OBJECTIVES)
def test_broken_objectives(name):
    breaks, promise = broken.OBJECTIVES[name]
    caught(testing.check_objective, broken.objective(breaks), promise)


@pytest.mark.parametrize("name", broken.BACKBONES)
def test_broken_backbones(name):
    breaks, promise = broken.BACKBONES[name]
    caught(testing.check_backbone, broken.backbone(breaks), promise)


@pytest.mark.parametrize("name", broken.BOUNDS)
def test_broken_bounds(name):
    caught(testing.check_bound, *broken.BOUNDS[name])


@pytest.mark.parametrize("corpus", broken.CORPORA, ids=lambda cls: cls.__name__)
def test_broken_corpora(corpus):
    caught(testing.check_corpus, corpus(), broken.CORPORA[corpus])


@pytest.mark.parametrize("model", broken.TOKENIZERS, ids=lambda cls: cls.__name__)
def test_broken_tokenizers(model):
    caught(testing.check_tokenizer, broken.Tokenizer(model), broken.TOKENIZERS[model])


def test_a_tokenizer_may_say_which_texts_it_can_write():
    class Digits(broken.Model):
        def encode(self, text):
            if not all(symbol in "01" for symbol in text):
                raise UserError("digits alone")
            return super().encode(text)

    binary = broken.Tokenizer(Digits)
    caught(testing.check_tokenizer, binary, "this text can be written")
    binary.texts = ("0110", "")
    testing.check_tokenizer(binary)


def test_a_backbone_without_attention_is_not_held_to_it():
    class Network(nn.Module):
        reads_time = False

        def __init__(self, V):
            super().__init__()
            self.embedding, self.head = nn.Embedding(V + 1, 8), nn.Linear(8, V)
            self.both = nn.GRU(8, 4, batch_first=True, bidirectional=True)

        def forward(self, tokens, t=None, *, positions=None, attention=None, cache=None):
            assert attention is None
            assert cache is None
            return self.both(self.embedding(tokens))[0]

    recurrent = SimpleNamespace(build=lambda context: Network(context.vocabulary_size))
    with pytest.raises(AssertionError):
        testing.check_backbone(recurrent)
    recurrent.both_ways_only = True
    testing.check_backbone(recurrent)
    recurrent.build = lambda context: broken.backbone(broken.BACKBONES["nearsighted"][0]).build(context)
    caught(testing.check_backbone, recurrent, "without a mask every token sees every other")


def test_the_same_parts_unbroken_pass():
    testing.check_objective(broken.objective(lambda module: None))
    testing.check_backbone(broken.backbone(lambda module: None))
    testing.check_bound(broken.Bound())
    testing.check_corpus(broken.Corpus())
    testing.check_tokenizer(broken.Tokenizer(broken.Model))
