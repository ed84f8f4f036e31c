"""`atat serve`: what it refuses before it loads anything, and how it begins and ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import httpx2
import pytest
from servers import write_run

from tests.cli.terminal import refused
from tests.generation.making import tiny_model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "small", tiny_model())


def test_what_cannot_be_served_is_a_sentence(atat, run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(atat, "serve", str(run), "--port", port)
        assert said == (
            f"error: cannot listen on --host 127.0.0.1 --port {port}: Address already in use; "
            "choose a different host or port (0 for a free port)"
        )
    assert "Cannot assign requested address" in refused(atat, "serve", str(run), "--host", "203.0.113.1", "--port", "0")
    assert "invalid host name" in refused(atat, "serve", str(run), "--host", "a" * 99, "--port", "0")
    assert "--key is empty or contains" in refused(atat, "serve", str(run), "--key", "sésame")
    for origin in ("localhost:3000", "http://a.example/", "ftp://a.example", ""):
        said = f"--cors {origin} is not an origin; use one without a path, such as http://localhost:3000, or *"
        assert said in refused(atat, "serve", str(run), "--cors", "*", "--cors", origin)
    assert "is not a run folder" in refused(atat, "serve", str(tmp_path))
    assert "must be at least 1" in refused(atat, "serve", str(run), "sampler.steps=0")


@pytest.mark.slow
def test_it_serves_until_a_signal_and_ends_quietly(run):
    """Ctrl-C; tests/attack ends one by SIGTERM."""
    words = [sys.executable, "-m", "atat_zoo", "serve", str(run), "sampler.steps=3", "--port", "0", "--host", "0.0.0.0"]
    env = {**os.environ, "ATAT_KEY": "open"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        said = process.stdout.readline() if process.stdout else ""
        found = re.fullmatch(rf"{re.escape(str(run))} is served at (http://0\.0\.0\.0:\d+/) until Ctrl-C\n", said)
        assert found, said or process.communicate()
        with httpx2.Client(base_url=found[1], headers={"authorization": "Bearer open"}, trust_env=False) as client:
            (about,) = client.get("v1/models").json()["data"]
            assert (about["id"], about["sampler"]["steps"]) == ("small", 3)
            assert client.post("v1/completions", json={"prompt": "a", "seed": 1}).status_code == 200
            sampler = {"use": "left_to_right"}
            asked = {"stream": True, "n": 64, "unmasking": True, "sampler": sampler}
            with client.stream("POST", "v1/completions", json=asked) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                process.send_signal(signal.SIGINT)  # with texts in progress
                *_, last = filter(None, lines)
                assert "the server has stopped; try again after it restarts" in last
        out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", 0)
    note = "note: --host 0.0.0.0: other machines can reach this server, without encryption; it accepts requests with "
    assert err == f"{note}the key\n"
