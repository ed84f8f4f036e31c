"""Thirty calls as clients make them, and what is right: by `Model.sample`, not by the server."""

from __future__ import annotations

import torch

from atat_zoo.data.dialogues import message_of
from tests.generation.making import tiny_model

HI = [{"role": "user", "content": "hi"}]
LONGER = [{"role": "system", "content": "Be brief."}, *HI, {"role": "assistant", "content": "é"}, *HI]
SHORT = {"use": "ancestral", "steps": 4}
SURE = {
    "use": "combination",
    "tokens_per_step": {"use": "binomial", "steps": 6},
    "token_sampling": {"use": "categorical", "temperature": 0.0},
}
SAY_NOTHING = {"stop": [], "frequency_penalty": 0, "presence_penalty": 0, "user": "me"}
EOS = 257


def talking(**changes):
    """Return a model of dialogues by the plain template; of EOS it writes plenty."""
    return tiny_model(
        length=96,
        corpus={"use": "files", "train": ["talk.jsonl"]},
        data={"format": "chat", "packing": "document"},
        guidance={"use": "token_bias", "words": ["x"], "tokens": [EOS], "strength": 2.5},
        masking="uniform",
        without=("estimator",),
        **changes,
    )


def asked_in(model, messages):
    """Return how many tokens messages have, up to where their answer begins."""
    return sum(len(part.ids) for part in model.tokenizer.chat([*map(message_of, messages)], answering=True))


def written(model, given, tokens, **how):
    """Return texts of so many tokens that `Model.sample` writes behind those given, why they end, and what counts."""
    made = model.sample(how.pop("number", 1), length=given + tokens, precision="fp32", seed=3, **how)
    new = [row[given:] for row in made.sample.tokens.tolist()]
    ended = [EOS in row and not how.get("windows") for row in new]
    counts = [row.index(EOS) + 1 if end else len(row) for row, end in zip(new, ended, strict=True)]
    texts = [text.removeprefix(how.get("prompt", "")) for text in made.texts]
    reasons = ["stop" if end else "length" for end in ended]
    return {"texts": texts, "reasons": reasons, "tokens": [given, sum(counts)]}


def calls(model):
    """Return the calls to a model, as JSON."""
    made = []

    def call(endpoint, asked, expected, ours=None, stream=False):
        of = {"endpoint": endpoint, "asked": asked, "ours": ours or {}, "stream": stream, "expected": expected}
        made.append(of)

    def both(endpoint, asked, expected, ours=None):
        """Ask whole, and then for a stream."""
        call(endpoint, asked, expected, ours)
        call(endpoint, asked | {"stream_options": {"include_usage": True}}, expected, ours, stream=True)

    def complete(asked, prompt="We", ours=None, **how):
        asked = {"prompt": prompt, "seed": 3, "max_tokens": 20, **asked}
        both("completions", asked, written(model, len(prompt.encode()), 20, prompt=prompt, **how), ours)

    def chat(asked, messages=HI, tokens=30, ours=None, **how):
        asked = {"messages": messages, "seed": 3, "max_tokens": tokens, **asked}
        both("chat", asked, written(model, asked_in(model, messages), tokens, chat=messages, **how), ours)

    def refused(endpoint, asked, code=None, ours=None, stream=False):
        call(endpoint, asked, {"status": 400, "code": code, "type": "invalid_request_error"}, ours, stream)

    call("models", {}, {"texts": ["tiny"]})
    complete({})
    complete(SAY_NOTHING | {"logit_bias": {}, "best_of": 1}, prompt="é 日本")
    complete({"temperature": 0}, sampler=SURE)
    complete({"n": 3}, number=3)
    complete({}, ours={"sampler": SHORT}, sampler=SHORT)
    complete({}, ours={"windows": True}, windows=True)
    nothing = {"texts": ["We"], "reasons": ["length"], "tokens": [2, 0]}
    call("completions", {"prompt": "We", "max_tokens": 0, "echo": True}, nothing)
    drawn = {"reasons": ["length"], "tokens": [2, 6]}
    call("completions", {"prompt": "We", "max_tokens": 6.0, "seed": -1}, drawn, {"windows": True})
    (text,) = written(model, 2, 20, prompt="We", windows=True)["texts"]
    cut = {"texts": [text[: text.index(text[4:6])]], "reasons": ["stop"]}
    call(
        "completions",
        {"prompt": "We", "seed": 3, "max_tokens": 20, "stop": ["no such", text[4:6]]},
        cut,
        {"windows": True},
    )
    # The texts of the second prompt have numbers from 2³² on.
    two = [written(model, 1, 20, prompt=text, rows=torch.tensor([i << 32])) for i, text in enumerate("ab")]
    together = {key: [*two[0][key], *two[1][key]] for key in ("texts", "reasons")}
    together["tokens"] = [sum(pair) for pair in zip(two[0]["tokens"], two[1]["tokens"], strict=True)]
    call("completions", {"prompt": ["a", "b"], "seed": 3, "max_tokens": 20}, together)
    chat({})
    chat({}, messages=LONGER)
    chat({"n": 2}, number=2)
    chat(SAY_NOTHING | {"logprobs": False, "max_tokens": 60}, tokens=60)
    chat({}, ours={"sampler": SHORT}, sampler=SHORT)
    refused("chat", {"messages": [{"role": "user", "content": "long " * 99}]}, "context_length_exceeded")
    refused("completions", {"prompt": "We", "logprobs": 3})
    refused("completions", {"prompt": "We"}, ours={"promt": "a"}, stream=True)
    return made
