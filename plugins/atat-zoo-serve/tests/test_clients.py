"""Thirty calls by OpenAI's client, whose types validate the answers; `make test-clients` lets others make them."""

from __future__ import annotations

import pytest
from calls import calls, talking
from clients import run
from servers import listening, served


@pytest.fixture(scope="module")
def talkative():
    return talking()


@pytest.fixture(scope="module")
def thirty(talkative):
    return calls(talkative)


def test_openais_client_makes_thirty_calls(talkative, thirty):
    with listening(served(talkative)) as address:
        number, wrong = run("openai", f"{address}/v1", thirty)
    assert wrong == []
    assert number == len(thirty) == 30
    # Of all kinds: texts that end and texts that do not, and streams.
    reasons = [reason for each in thirty for reason in each["expected"].get("reasons", ())]
    assert {"stop", "length"} == set(reasons)
    assert sum(each["stream"] for each in thirty) == 12


def test_a_wrong_answer_is_told(talkative, thirty):
    """The script fails where a server answers something else."""
    wrong = [each | {"expected": {"texts": ["no"], "status": 418}} for each in thirty]
    with listening(served(talkative)) as address:
        assert len(run("openai", f"{address}/v1", wrong)[1]) == 30
