"""The checks of objectives, backbones, bounds, corpora, tokenizers and judges name the promise that a part breaks."""

import itertools
from types import SimpleNamespace

import attrs
import pytest
import torch
from broken import Changed, building, having_built, parameters
from torch import nn

from atat_zoo import testing
from atat_zoo.data import corpora, tokenizers
from atat_zoo.data.tokenizers.tokenizer_models import BytesModel
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.modeling.objectives.masked_diffusion import MDLMObjective
from atat_zoo.system.errors import UserError
from atat_zoo.testing.toys import FunctionDenoiser

OBJECTIVE = MDLMObjective()
BACKBONE = DiTBackbone(layers=1, width=16, heads=2, max_length=12)


def scaled(result, by):
    return result | {"loss": result["loss"] * by}


def halved(original, *at):
    return {name: attrs.evolve(bound, contribution=bound.contribution / 2) for name, bound in original(*at).items()}


def denoiser_of(function):
    """Replace the log-probabilities of a denoiser by a function of them and of the rows' number."""

    def changed(original):
        good = original()
        return FunctionDenoiser(lambda z, t, where: function(good(z, t, where), len(z)), good.mask_id)

    return changed


def bound_of(keys):
    """Replace the keys of the bound by a function of them."""
    return lambda good, x, maskable, given, *rest: good(x, maskable, keys(given), *rest)


# What is said, and the method of the objective's module that is replaced.
REPLACED = {
    "must be detached, but diffusion_loss": {
        "loss": lambda good, batch: (found := good(batch)) | {"diffusion_loss": found["loss"] * 1}
    },
    "the loss must not depend on the micro-batch size": {
        "loss": lambda good, batch: scaled(good(batch), len(batch.tokens))
    },
    "the same batch must give the same loss": {"loss": lambda good, batch: scaled(good(batch), 1 + torch.rand(()))},
    "the loss of a masked token must not depend on that token": {
        "head_inputs_of": lambda good, z, t, masked, x, *rest: good(x, t, masked, x, *rest)
    },
    "a bound must not be below the entropy of the text": {"bound": halved},
    "only maskable tokens may add to the bound": {
        "bound": lambda good, x, _, *rest: good(x, torch.ones_like(x).bool(), *rest)
    },
    "must be named nelbo": {"bound": lambda good, *at: {"perplexity": good(*at)["nelbo"]}},
    "must depend on its key, not on the rest of the batch": {
        "bound": bound_of(lambda keys: keys[:1] + torch.arange(len(keys)))
    },
    "must return the masks of the first bound": {"bound": bound_of(lambda keys: keys + 1)},
    "must return the loss over which the first bound averages": {"cross_entropy": lambda good, *at: good(*at) / 2},
    "the probabilities of a position must sum to 1": {"denoiser": denoiser_of(lambda found, _: found + 1)},
    "a row must not depend on the rest of its batch": {
        "denoiser": denoiser_of(lambda found, rows: (found * (1 + rows)).log_softmax(-1))
    },
}
OBJECTIVES = {said: building(OBJECTIVE, **methods) for said, methods in REPLACED.items()}
OBJECTIVES[r"every weight must have a gradient, but that of backbone\.head"] = having_built(
    OBJECTIVE, lambda module: module.backbone.head.weight.register_hook(torch.zeros_like)
)


def over_the_batch(original, *at, **options):
    return (hidden := original(*at, **options)) + hidden.mean(0, keepdim=True)


def looking_ahead(original, tokens, t=None, *, attention=None, **options):
    return original(tokens, t, attention=None if isinstance(attention, str) else attention, **options)


def nearsighted(original, tokens, t=None, *, attention=None, **options):
    return original(tokens, t, attention="causal" if attention is None else attention, **options)


def smeared(head):
    forward = head.forward
    head.forward = lambda hidden: forward(hidden + hidden.mean(-2, keepdim=True))


BACKBONES = {
    "a row must not depend on the rest of its batch": building(BACKBONE, forward=over_the_batch),
    "causal attention must not see later tokens": building(BACKBONE, forward=looking_ahead),
    "every token must see every other": building(BACKBONE, forward=nearsighted),
    "a cache must not change the hidden states": building(
        BACKBONE, forward=lambda good, tokens, t=None, *, cache=None, **options: good(tokens, t, **options)
    ),
    "only to a network with takes_cache = True": having_built(
        BACKBONE, lambda module: setattr(module, "takes_cache", False)
    ),
    "one per token without the mask": having_built(BACKBONE, lambda module: setattr(module, "head", nn.Linear(16, 12))),
    "the head must compute each position independently": having_built(BACKBONE, lambda module: smeared(module.head)),
    r"every weight must have a gradient, but spare\.weight has none": having_built(
        BACKBONE, lambda module: module.add_module("spare", nn.Linear(2, 2))
    ),
}


def bound(*, weight=1.0, given=lambda maskable, keys: (maskable, keys)):
    """Return `exact_k` with its weights, or what it is given, changed."""

    def masks(good, maskable, keys, *rest):
        for mask in good(*given(maskable, keys), *rest):
            yield attrs.evolve(mask, weight=mask.weight * weight)

    return Changed(ExactKBound(), masks=masks)


CALLS = itertools.count()
BOUNDS = {
    "a bound must not be below the entropy of the text": bound(weight=0.9),
    "the mean of the estimates must be the bound": bound(weight=1.2),
    "weights must be finite": bound(weight=float("inf")),
    "the same keys must give the same estimate": bound(given=lambda m, keys: (m, keys + next(CALLS))),
    "a row must not depend|different keys must draw": bound(given=lambda m, keys: (m, torch.arange(len(keys)))),
    "tokens that are not maskable must not be masked": bound(given=lambda m, keys: (torch.ones_like(m), keys)),
}


class Corpus(corpora.Corpus):
    """Two documents to train on and one in each other split."""

    def documents(self, split):
        return iter({"train": ["a", "b"], "validation": ["c"], "test": ["d"]}[split])

    def fingerprint(self):
        return {"documents": 4}


COUNT = itertools.count()
CORPORA = {
    "a document must not be both in train and in test": lambda good, split: good("train" if split == "test" else split),
    "the same documents in the same order": lambda good, split: [*good(split), str(next(COUNT))],
    "a document must be a str, not bytes": lambda good, split: map(str.encode, good(split)),
    "an unknown split must raise a UserError": lambda good, split: good(split) if split != "no such split" else (),
}
CORPORA = {said: Changed(Corpus(), documents=documents) for said, documents in CORPORA.items()} | {
    "the same text must have the same fingerprint": Changed(Corpus(), fingerprint=lambda good: {"calls": next(COUNT)}),
    "writing and reading it as JSON": Changed(Corpus(), fingerprint=lambda good: {"sizes": (1, 2)}),
    "a corpus must inherit from": SimpleNamespace(),
}


def tokenizer(**methods):
    """Return a tokenizer of bytes, trained to a model with some methods of its own, and loaded as it should be."""
    model = type("Broken", (BytesModel,), methods)
    parts = {"train": lambda self, documents: model(), "load": lambda self, folder: BytesModel()}
    return type("Broken", (tokenizers.Tokenizer,), parts)()


TOKENIZERS = {
    "must restore the text": tokenizer(encode=lambda self, text: BytesModel.encode(self, text.lower())),
    "byte count of bos must be 0": tokenizer(byte_counts=lambda self: BytesModel.byte_counts(self) * 0 + 1),
    "must not return BOS or EOS": tokenizer(encode=lambda self, text: [self.bos, *BytesModel.encode(self, text)]),
    "ids must be from 0 to vocabulary_size - 1": tokenizer(
        encode=lambda self, text: [258] if text.startswith("[MASK]") else BytesModel.encode(self, text)
    ),
    "eos must be an id from 0 to V - 1": tokenizer(eos=property(lambda self: 258, lambda self, value: None)),
    "must restore what": tokenizer(bos=property(lambda self: None, lambda self, value: None)),
    "a tokenizer must inherit from": SimpleNamespace(),
    "must return the same ids as encode()": tokenizer(
        encode_batch=lambda self, texts: [self.encode(text) for text in sorted(texts)]
    ),
}


def judge(title="sound", nats=lambda nats, count: (nats, count), features=lambda found: found, refuses=("nats", "")):
    """Return a judge of two nats a character, with what it says changed."""

    def said(texts):
        if not texts and "nats" in refuses:
            raise UserError("no texts")
        count = torch.tensor([len(text) for text in texts])
        return nats(2.0 * count.double(), count)

    def measured(texts):
        if "" in texts and "" in refuses:
            raise UserError("an empty text")
        return features(torch.tensor([[len(text), text.count("e")] for text in texts], dtype=torch.float32))

    return SimpleNamespace(build=lambda device: SimpleNamespace(title=title, nats=said, features=measured))


JUDGES = {
    "a judge model must have a title": judge(title=" "),
    "nats: expected float64": judge(nats=lambda nats, count: (nats.float(), count)),
    "not negative": judge(nats=lambda nats, count: (nats - 7, count)),
    "the same texts must have the same NLLs": judge(nats=lambda nats, count: (nats + next(COUNT), count)),
    "the NLL of a text must not depend on the other texts": judge(
        nats=lambda nats, count: (nats * 0 + nats.max(), count)
    ),
    "a longer text must have a higher NLL": judge(nats=lambda nats, count: (nats.clamp(max=20), count.clamp(max=10))),
    "the features of a text must not depend on the other texts": judge(features=lambda found: found - found.mean(0)),
    "one vector per text": judge(features=lambda found: found[:, 0]),
    "an empty string must have 0 tokens and an NLL of 0": judge(nats=lambda nats, count: (nats + 1, count)),
    "`nats` without texts must raise a UserError": judge(refuses=("",)),
    "features of an empty string must raise a UserError": judge(refuses=("nats",)),
}


@pytest.mark.parametrize(
    ("check", "part", "said"),
    [
        *parameters(testing.check_objective, OBJECTIVES),
        *parameters(testing.check_backbone, BACKBONES),
        *parameters(testing.check_bound, BOUNDS),
        *parameters(testing.check_corpus, CORPORA),
        *parameters(testing.check_tokenizer, TOKENIZERS),
        *parameters(testing.check_judge, JUDGES),
    ],
)
def test_what_is_broken_is_named(check, part, said):
    with pytest.raises(AssertionError, match=said):
        check(part)


@pytest.mark.slow
def test_the_same_parts_unbroken_pass():
    testing.check_objective(building(OBJECTIVE))
    testing.check_backbone(building(BACKBONE))
    testing.check_bound(bound())
    testing.check_corpus(Corpus())
    testing.check_tokenizer(tokenizer())
    testing.check_judge(judge())


def test_a_tokenizer_may_say_which_texts_it_can_write():
    def encode(self, text):
        if not set(text) <= set("01"):
            raise UserError("digits alone")
        return BytesModel.encode(self, text)

    binary = tokenizer(encode=encode)
    with pytest.raises(AssertionError, match="the tokenizer must be able to encode this text"):
        testing.check_tokenizer(binary)
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
            assert (attention, cache) == (None, None)
            return self.both(self.embedding(tokens))[0]

    recurrent = SimpleNamespace(build=lambda context: Network(context.vocabulary_size))
    with pytest.raises(AssertionError):
        testing.check_backbone(recurrent)
    recurrent.both_ways_only = True
    testing.check_backbone(recurrent)
    recurrent.build = building(BACKBONE, forward=nearsighted).build
    with pytest.raises(AssertionError, match="without an attention mask, every token must see every other token"):
        testing.check_backbone(recurrent)
