"""The examples of docs/how-to/serving.md, carried out on a server as they stand there but for its address."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
import subprocess

import openai
import pytest
from atat_zoo_serve.request_fields import ChatRequest, CompletionRequest, InfillRequest
from attrs import evolve
from calls import talking
from servers import listening, served

from tests.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "serving.md"


@pytest.fixture(scope="module")
def ask():
    """Return a text of the page with the address of a server."""
    with listening(evolve(served(), name="quickstart")) as address:
        yield lambda text: text.replace("http://127.0.0.1:8422", address)


def test_what_curl_is_told(ask):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    lines = [line[2:] for block in blocks(PAGE) for line in block.text.splitlines() if line.startswith("$ curl ")]
    assert len(lines) == 4
    for line in lines:
        words = [*shlex.split(ask(line)), "--silent", "--show-error", "--fail-with-body", "--noproxy", "*"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)


def test_what_openais_client_is_told(ask):
    code, chat = [block.text for block in blocks(PAGE) if block.language == "python noexec"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(ask(code), str(PAGE), "exec"), {})
    assert said.getvalue().count("'masked'") >= 3
    with (
        listening(served(talking())) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client,
        contextlib.redirect_stdout(io.StringIO()) as said,
    ):
        exec(compile(chat.replace("tutor", "tiny"), str(PAGE), "exec"), {"client": client})
    assert said.getvalue().split()[-1] in ("stop", "length")


def test_every_field_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    fields = {*CompletionRequest.model_fields, *ChatRequest.model_fields, *InfillRequest.model_fields} - {
        "model",
        "user",
    }
    assert [field for field in fields if f"`{field}`" not in text and "penalty" not in field] == []
