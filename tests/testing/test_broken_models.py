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
    "a figure is detached: diffusion_loss": {
        "loss": lambda good, batch: (found := good(batch)) | {"diffusion_loss": found["loss"] * 1}
    },
    "the loss does not depend on the micro-batch": {"loss": lambda good, batch: scaled(good(batch), len(batch.tokens))},
    "the same batch has the same loss": {"loss": lambda good, batch: scaled(good(batch), 1 + torch.rand(()))},
    "the loss of a hidden token does not read that token": {
        "head_inputs_of": lambda good, z, t, masked, x, *rest: good(x, t, masked, x, *rest)
    },
    "a bound is not below the entropy of the text": {"bound": halved},
    "what is not maskable adds nothing": {"bound": lambda good, x, _, *rest: good(x, torch.ones_like(x).bool(), *rest)},
    "has the name nelbo": {"bound": lambda good, *at: {"perplexity": good(*at)["nelbo"]}},
    "function of its key, and does not depend on its batch": {
        "bound": bound_of(lambda keys: keys[:1] + torch.arange(len(keys)))
    },
    "`masks` are those of the first bound": {"bound": bound_of(lambda keys: keys + 1)},
    "`cross_entropy` is what the first bound averages": {"cross_entropy": lambda good, *at: good(*at) / 2},
    "the probabilities of a position sum to 1": {"denoiser": denoiser_of(lambda found, _: found + 1)},
    "a row does not depend on its batch": {
        "denoiser": denoiser_of(lambda found, rows: (found * (1 + rows)).log_softmax(-1))
    },
}
OBJECTIVES = {said: building(OBJECTIVE, **methods) for said, methods in REPLACED.items()}
OBJECTIVES[r"every weight has a gradient: that of backbone\.head"] = having_built(
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
    "a row does not depend on the others of its batch": building(BACKBONE, forward=over_the_batch),
    "causal attention sees no future": building(BACKBONE, forward=looking_ahead),
    "every token sees every other": building(BACKBONE, forward=nearsighted),
    "with a cache the hidden states are those without one": building(
        BACKBONE, forward=lambda good, tokens, t=None, *, cache=None, **options: good(tokens, t, **options)
    ),
    "only to a network that says takes_cache = True": having_built(
        BACKBONE, lambda module: setattr(module, "takes_cache", False)
    ),
    "none for the mask": having_built(BACKBONE, lambda module: setattr(module, "head", nn.Linear(16, 12))),
    "the head looks at one position": having_built(BACKBONE, lambda module: smeared(module.head)),
    r"every weight has a gradient: spare\.weight has none": having_built(
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
    "a bound is not below the entropy of the text": bound(weight=0.9),
    "the mean of the estimates is the bound": bound(weight=1.2),
    "weights are finite": bound(weight=float("inf")),
    "the same keys give the same estimate": bound(given=lambda m, keys: (m, keys + next(CALLS))),
    "a row does not depend|other keys draw": bound(given=lambda m, keys: (m, torch.arange(len(keys)))),
    "what is not maskable is not masked": bound(given=lambda m, keys: (torch.ones_like(m), keys)),
}


class Corpus(corpora.Corpus):
    """Two documents to train on and one in each other split."""

    def documents(self, split):
        return iter({"train": ["a", "b"], "validation": ["c"], "test": ["d"]}[split])

    def fingerprint(self):
        return {"documents": 4}


COUNT = itertools.count()
CORPORA = {
    "no document is in train and in test too": lambda good, split: good("train" if split == "test" else split),
    "the same documents in the same order": lambda good, split: [*good(split), str(next(COUNT))],
    "a document is a str, not bytes": lambda good, split: map(str.encode, good(split)),
    "a split that there is not is refused": lambda good, split: good(split) if split != "no such split" else (),
}
CORPORA = {said: Changed(Corpus(), documents=documents) for said, documents in CORPORA.items()} | {
    "the same text has the same fingerprint": Changed(Corpus(), fingerprint=lambda good: {"calls": next(COUNT)}),
    "written as JSON and read back": Changed(Corpus(), fingerprint=lambda good: {"sizes": (1, 2)}),
    "a corpus inherits from": SimpleNamespace(),
}


def tokenizer(**methods):
    """Return a tokenizer of bytes, trained to a model with some methods of its own, and loaded as it should be."""
    model = type("Broken", (BytesModel,), methods)
    parts = {"train": lambda self, documents: model(), "load": lambda self, folder: BytesModel()}
    return type("Broken", (tokenizers.Tokenizer,), parts)()


TOKENIZERS = {
    "a text is decoded from its ids": tokenizer(encode=lambda self, text: BytesModel.encode(self, text.lower())),
    "its byte count is 0": tokenizer(byte_counts=lambda self: BytesModel.byte_counts(self) * 0 + 1),
    "BOS and EOS are no text": tokenizer(encode=lambda self, text: [self.bos, *BytesModel.encode(self, text)]),
    "the mask is no text": tokenizer(
        encode=lambda self, text: [258] if text.startswith("[MASK]") else BytesModel.encode(self, text)
    ),
    "eos is an id from 0 to V - 1": tokenizer(eos=property(lambda self: 258, lambda self, value: None)),
    "what is saved is loaded as it was": tokenizer(bos=property(lambda self: None, lambda self, value: None)),
    "a tokenizer inherits from": SimpleNamespace(),
    "several texts have the ids of each alone": tokenizer(
        encode_batch=lambda self, texts: [self.encode(text) for text in sorted(texts)]
    ),
}


def judge(title="sound", nats=lambda nats, count: (nats, count), features=lambda found: found):
    """Return a judge of two nats a character, with what it says changed."""

    def said(texts):
        count = torch.tensor([len(text) for text in texts])
        return nats(2.0 * count.double(), count)

    def measured(texts):
        return features(torch.tensor([[len(text), text.count("e")] for text in texts], dtype=torch.float32))

    return SimpleNamespace(build=lambda device: SimpleNamespace(title=title, nats=said, features=measured))


JUDGES = {
    "a judge has a title": judge(title=" "),
    "nats: float64": judge(nats=lambda nats, count: (nats.float(), count)),
    "not negative": judge(nats=lambda nats, count: (nats - 7, count)),
    "says the same of the same texts": judge(nats=lambda nats, count: (nats + next(COUNT), count)),
    "a text does not depend on those beside it": judge(nats=lambda nats, count: (nats * 0 + nats.max(), count)),
    "a longer text costs more": judge(nats=lambda nats, count: (nats.clamp(max=20), count.clamp(max=10))),
    "nor does its feature": judge(features=lambda found: found - found.mean(0)),
    "a vector for each text": judge(features=lambda found: found[:, 0]),
    "an empty text has no tokens and costs nothing": judge(nats=lambda nats, count: (nats + 1, count)),
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
    with pytest.raises(AssertionError, match="this text can be written"):
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
    with pytest.raises(AssertionError, match="without a mask every token sees every other"):
        testing.check_backbone(recurrent)
