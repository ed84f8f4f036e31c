"""Objectives, backbones, bounds, corpora and tokenizers with one mistake each.

Each is a working part with one method replaced, so that nothing else can be what the suite finds.
"""

import functools
from types import MethodType

import attrs
import torch

from atat_zoo.backbones.dit import DiTBackbone
from atat_zoo.bounds import ExactKBound
from atat_zoo.objectives.masked import MDLMObjective
from atat_zoo.testing.toys import FunctionDenoiser
from atat_zoo.tokenizers.tables import BytesModel


class Changed:
    """A part whose `build` hands what it has built to a function that breaks it."""

    def __init__(self, good, breaks):
        self.good, self.breaks = good, breaks

    def __getattr__(self, name):
        return getattr(self.good, name)

    def build(self, *arguments):
        module = self.good.build(*arguments)
        self.breaks(module)
        return module


def replacing(method, by):
    """Return what replaces a method of a module by `by(original, module, *arguments)`."""

    def breaks(module):
        original = getattr(module, method)

        @functools.wraps(original)
        def changed(self, *arguments, **options):
            return by(original, self, *arguments, **options)

        # A module's own attributes come before those of its class.
        module.__dict__[method] = MethodType(changed, module)

    return breaks


# Objectives: of the loss, of the bound, of the denoiser


def scaled(loss, by):
    return loss | {"loss": loss["loss"] * by}


def attached(original, self, batch):
    result = original(batch)
    return result | {"diffusion_loss": result["loss"] * 1}


def frozen_head(module):
    module.backbone.head.weight.register_hook(torch.zeros_like)


def of_the_sum(original, self, batch):
    return scaled(original(batch), len(batch.tokens))


def of_the_batch(original, self, batch):
    result = original(batch)
    return scaled(result, 1 + batch.tokens.float().mean())


def by_chance(original, self, batch):
    return scaled(original(batch), 1 + torch.rand(()))


def unmasked(original, self, z, t, masked, x):
    return original(x, t, masked, x)


def halved(original, self, *arguments):
    found = original(*arguments)
    return {name: attrs.evolve(each, contribution=each.contribution / 2) for name, each in found.items()}


def of_everything(original, self, tokens, maskable, *arguments):
    return original(tokens, torch.ones_like(maskable), *arguments)


def renamed(original, self, *arguments):
    return {"perplexity": original(*arguments)["nelbo"]}


def of_the_first_key(original, self, tokens, maskable, keys, *arguments):
    return original(tokens, maskable, keys[:1].expand_as(keys) + torch.arange(len(keys)), *arguments)


def of_other_masks(original, self, tokens, maskable, keys, *arguments):
    return original(tokens, maskable, keys + 1, *arguments)


def half_the_loss(original, self, *arguments):
    return original(*arguments) / 2


def raw_logits(original, self):
    denoiser = original()
    return FunctionDenoiser(lambda tokens, t, where: denoiser(tokens, t, where) + 1, denoiser.mask_id)


def over_the_batch(original, self):
    denoiser = original()

    def sharpened(tokens, t, where):
        return (denoiser(tokens, t, where) * (1 + len(tokens))).log_softmax(-1)

    return FunctionDenoiser(sharpened, denoiser.mask_id)


OBJECTIVES = {
    "attached": (replacing("loss", attached), "a figure is detached: diffusion_loss"),
    "dead_head": (frozen_head, r"every weight has a gradient: that of backbone\.head"),
    "of_the_sum": (replacing("loss", of_the_sum), "the loss does not depend on the micro-batch"),
    "of_the_batch": (replacing("loss", of_the_batch), "does not depend on the micro-batch"),
    "by_chance": (replacing("loss", by_chance), "the same batch has the same loss"),
    "unmasked": (replacing("places", unmasked), "the loss of a hidden token does not read that token"),
    "halved": (replacing("bound", halved), "a bound is not below the entropy of the text"),
    "of_everything": (replacing("bound", of_everything), "what is not maskable adds nothing"),
    "renamed": (replacing("bound", renamed), "has the name nelbo"),
    "of_the_first_key": (replacing("bound", of_the_first_key), "function of its key, and does not depend on its batch"),
    "of_other_masks": (replacing("bound", of_other_masks), "`masks` are those of the first bound"),
    "half_the_loss": (replacing("cross_entropy", half_the_loss), "`cross_entropy` is what the first bound averages"),
    "raw_logits": (replacing("denoiser", raw_logits), "the probabilities of a position sum to 1"),
    "over_the_batch": (replacing("denoiser", over_the_batch), "a row does not depend on its batch"),
}


def objective(breaks):
    return Changed(MDLMObjective(), breaks)


# Backbones


def neighbourly(original, self, *arguments, **options):
    hidden = original(*arguments, **options)
    return hidden + hidden.mean(0, keepdim=True)


def looking_ahead(original, self, tokens, t=None, *, attention=None, **options):
    return original(tokens, t, attention=None if isinstance(attention, str) else attention, **options)


def nearsighted(original, self, tokens, t=None, *, attention=None, **options):
    return original(tokens, t, attention="causal" if attention is None else attention, **options)


def forgetful(original, self, tokens, t=None, *, cache=None, **options):
    return original(tokens, t, **options)


def with_mask(module):
    module.head = torch.nn.Linear(module.embedding.embedding_dim, module.embedding.num_embeddings)


def widened(original, self, hidden):
    return original(hidden + hidden.mean(-2, keepdim=True))


def broken_head(module):
    replacing("forward", widened)(module.head)


def idle(module):
    module.spare = torch.nn.Linear(2, 2)


BACKBONES = {
    "neighbourly": (replacing("forward", neighbourly), "a row does not depend on the others of its batch"),
    "looking_ahead": (replacing("forward", looking_ahead), "causal attention sees no future"),
    "nearsighted": (replacing("forward", nearsighted), "every token sees every other"),
    "forgetful": (replacing("forward", forgetful), "with a cache the hidden states are those without one"),
    "with_mask": (with_mask, "none for the mask"),
    "looking_around": (broken_head, "the head looks at one position"),
    "idle": (idle, r"every weight has a gradient: spare\.weight has none"),
}


def backbone(breaks):
    return Changed(DiTBackbone(layers=1, width=16, heads=2, max_length=12), breaks)


# Bounds


@attrs.frozen
class Bound:
    """`exact_k`, with the masks that it yields, or what it is given, changed."""

    after: object = lambda mask: mask
    before: object = lambda maskable, keys: (maskable, keys)
    quantity = "nelbo"
    follows_noise = False

    def masks(self, maskable, keys, draws, noise):
        return map(self.after, ExactKBound().masks(*self.before(maskable, keys), draws, noise))


def weighing(factor):
    return lambda mask: attrs.evolve(mask, weight=mask.weight * factor)


BOUNDS = {
    "too_low": (Bound(after=weighing(0.9)), "a bound is not below the entropy of the text"),
    "too_high": (Bound(after=weighing(1.2)), "the mean of the estimates is the bound"),
    "endless": (Bound(after=weighing(float("inf"))), "weights are finite"),
    "moody": (Bound(before=lambda m, k: (m, k + torch.randint(99, ()))), "the same keys give the same estimate"),
    "keyless": (Bound(before=lambda m, k: (m, torch.arange(len(k)))), "a row does not depend|other keys draw"),
    "greedy": (Bound(before=lambda m, k: (torch.ones_like(m), k)), "what is not maskable is not masked"),
}


# Corpora


class Corpus:
    """Two documents to train on and one in each other split."""

    def documents(self, split):
        return iter({"train": ["a", "b"], "validation": ["c"], "test": ["d"]}[split])

    def fingerprint(self):
        return {"documents": 4}


class Overlapping(Corpus):
    def documents(self, split):
        return iter(["b"] if split == "test" else super().documents(split))


class Restless(Corpus):
    calls = 0

    def documents(self, split):
        self.calls += 1
        return iter([*super().documents(split), str(self.calls)])


class Binary(Corpus):
    def documents(self, split):
        return (document.encode() for document in super().documents(split))


class Agreeable(Corpus):
    def documents(self, split):
        return super().documents(split) if split in ("train", "validation", "test") else iter(())


class Undated(Corpus):
    def fingerprint(self):
        self.calls = getattr(self, "calls", 0) + 1
        return {"calls": self.calls}


class Opaque(Corpus):
    def fingerprint(self):
        return {"sizes": (1, 2)}


CORPORA = {
    Overlapping: "no document is in train and in test too",
    Restless: "the same documents in the same order",
    Binary: "a document is a str, not bytes",
    Agreeable: "a split that there is not is refused",
    Undated: "the same text has the same fingerprint",
    Opaque: "written as JSON and read back",
}


# Tokenizers


class Model(BytesModel):
    """Bytes; what is broken below is right here."""


class Tokenizer:
    """Trains and loads a class of model."""

    def __init__(self, model):
        self.model = model

    def train(self, documents):
        return self.model()

    def load(self, folder):
        return BytesModel()


class Lossy(Model):
    def encode(self, text):
        return super().encode(text.lower())


class Counting(Model):
    def byte_counts(self):
        return super().byte_counts() * 0 + 1


class ByCharacter(Model):
    def decode(self, ids):
        return "".join("[MASK]" if i == 258 else chr(i) for i in ids if i < 256 or i == 258)


class Framed(Model):
    def encode(self, text):
        return [self.bos, *super().encode(text)]


class Masking(Model):
    def encode(self, text):
        return [258] if text.startswith("[MASK]") else super().encode(text)


class Beyond(Model):
    def __init__(self):
        super().__init__()
        self.eos = 258


class Changing(Model):
    """Is not what it is when it is loaded."""

    def __init__(self):
        super().__init__()
        self.bos = None


class Batched(Model):
    def encode_batch(self, texts):
        return [self.encode(text) for text in sorted(texts)]


TOKENIZERS = {
    Lossy: "a text is decoded from its ids",
    Counting: "its byte count is 0",
    ByCharacter: "a text is decoded from its ids",
    Framed: "BOS and EOS are no text",
    Masking: "the mask is no text",
    Beyond: "eos is an id from 0 to V - 1",
    Changing: "what is saved is loaded as it was",
    Batched: "several texts have the ids of each alone",
}
