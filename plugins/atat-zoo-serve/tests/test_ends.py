"""A served text ends at the first EOS that was written, as `Model.sample` has it, and `usage` counts to there."""

from __future__ import annotations

import pytest
from servers import chunks, in_process, served

from atat_zoo.data.tokenizers import BytesTokenizer
from tests.generation.making import tiny_model

BYTES = BytesTokenizer().train(lambda: iter(()))
EOS = BYTES.eos
NUMBER = 8
OFTEN = {"guidance": {"use": "token_bias", "words": ["x"], "tokens": [EOS], "strength": 2.5}}


@pytest.fixture(scope="module", params=["document", "both"])
def ending(request):
    return tiny_model(data={"special": request.param}, **OFTEN)


def written(model, how, prompt, suffix=""):
    """Return of each text the tokens between prompt and suffix."""
    rows = model.sample(NUMBER, prompt=prompt, suffix=suffix, precision="fp32", **how).sample.tokens.tolist()
    framed = model.experiment.data.special == "both"
    return [row[len(prompt) + framed : len(row) - len(suffix) - framed] for row in rows]


@pytest.mark.parametrize("sampler", [{"use": "ancestral"}, {"use": "left_to_right"}, {"use": "remdm_cap", "steps": 8}])
@pytest.mark.parametrize("suffix", ["", "z"])
def test_a_completion_ends_at_the_first_eos(ending, sampler, suffix):
    """Trial 5: whole, streamed, with a suffix, and by a sampler that masks tokens again."""
    how = {"sampler": sampler, "seed": 4}
    rows = written(ending, how, "We", suffix)
    asked = {"prompt": "We", "suffix": suffix, "n": NUMBER, **how}
    with in_process(served(ending)) as client:
        answer = client.post("/v1/completions", json=asked).json()
        events, _ = chunks(client, "/v1/completions", unmasking=True, stream_options={"include_usage": True}, **asked)
        windows = client.post("/v1/completions", json={"windows": True, **asked}).json()
    inside = [EOS in row for row in rows]
    assert 0 < sum(inside) < NUMBER
    ids = [row[: row.index(EOS)] if EOS in row else row for row in rows]
    texts = [BYTES.decode(each) for each in ids]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [f"We{text}{suffix}" for text in texts] == ending.sample(
        NUMBER, prompt="We", suffix=suffix, precision="fp32", **how
    ).texts
    assert [choice["finish_reason"] == "stop" for choice in answer["choices"]] == inside
    assert answer["usage"]["completion_tokens"] == sum(map(len, ids)) + sum(inside)  # an EOS counts
    assert events[-1]["usage"] == answer["usage"]
    added, reasons, states = [""] * NUMBER, [[] for _ in rows], {}
    for choice in (choice for event in events for choice in event["choices"]):
        added[choice["index"]] += choice["text"]
        reasons[choice["index"]] += [choice["finish_reason"]] if choice["finish_reason"] else []
        states[choice["index"]] = choice["unmasking"]
    assert added == texts
    assert reasons == [["stop" if ended else "length"] for ended in inside]
    for index, state in states.items():
        assert "".join(text for segment in state for text in segment.values()) == f"We{texts[index]}{suffix}"
    assert [choice["text"] for choice in windows["choices"]] == [BYTES.decode(row) for row in rows]
    assert {choice["finish_reason"] for choice in windows["choices"]} == {"length"}
    assert windows["usage"]["completion_tokens"] == sum(map(len, rows))


def test_where_the_rows_have_no_eos_nothing_ends():
    model = tiny_model(data={"special": "none"}, **OFTEN)
    rows = written(model, {"seed": 4}, "We")
    assert any(EOS in row for row in rows)
    with in_process(served(model)) as client:
        answer = client.post("/v1/completions", json={"prompt": "We", "n": NUMBER, "seed": 4}).json()
    assert [choice["text"] for choice in answer["choices"]] == [BYTES.decode(row) for row in rows]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}


def test_usage_counts_to_the_first_stop(ending):
    rows = written(ending, {"seed": 4}, "We")
    stop = BYTES.decode(next(row for row in rows if EOS not in row[:9] and row[7] < 128 and row[8] < 128)[7:9])
    counted, reasons = 0, []
    for row in rows:
        ids = row[: row.index(EOS)] if EOS in row else row
        ends = [n for n in range(len(ids) + 1) if stop in BYTES.decode(ids[:n])]
        counted += ends[0] if ends else len(ids) + (EOS in row)
        reasons.append("stop" if ends or EOS in row else "length")
    assert set(reasons) == {"stop", "length"}
    with in_process(served(ending)) as client:
        answer = client.post("/v1/completions", json={"prompt": "We", "n": NUMBER, "seed": 4, "stop": stop}).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == reasons
    assert answer["usage"]["completion_tokens"] == counted
