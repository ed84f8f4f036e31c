"""`atat serve` under connections that say nothing or half of something: it answers others, and ends without a word."""

import json
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

from tests import forked
from tests.attack.driver import FAILED, FINE, Verdict, last_words, one_by_one
from tests.tiny import Tiny

FILES = 256  # that the server may have open
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POST += b"Content-Length: %d\r\n\r\n%s"
STREAM = json.dumps({"stream": True, "unmasking": True, "n": 8, "sampler": {"use": "left_to_right"}}).encode()
SAID = (
    *(b"", b"G", b"GET /health HTTP/1.1\r\nHost: lo", b"\0" * 99, b"x: y\r\n" * 9, POST % (9000, b"{")),
    *(POST % (len(STREAM), STREAM), POST % (2, b"{}") * 9),
)


def prepare(base):
    """Train a model."""
    Tiny(base, ".")
    words = ["train", "tiny.toml", "train.steps=2", "data.sequences_per_shard=256", "sampler.steps=2", "--out", "run"]
    done = forked.run(words, base)
    assert done.returncode == 0, done.stderr


def limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


def attack(draw, number, seed, base, work):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "atat_zoo", "serve", "run", "--port", str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=base, preexec_fn=limit, **pipes) as process, ExitStack() as stack:
        why = ""
        try:
            process.stdout.readline()
            for _ in range(3 * FILES):
                with suppress(ConnectionError):
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                    connection.sendall(draw.choice(SAID))
            began = time.monotonic()
            with suppress(urllib.error.HTTPError):  # that too many are being answered
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
            if time.monotonic() - began > 30:
                why = "an answer takes half a minute"
        except OSError as error:
            why = f"it does not answer: {error}"
        process.send_signal(draw.choice((signal.SIGINT, signal.SIGTERM)))
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            why = why or "it does not end"
    if not why and (process.returncode or err):
        why = f"exit code {process.returncode}, {len(err):,} characters on the terminal: {last_words(out + err)}"
    return Verdict(FAILED if why else FINE, why)


KIND = one_by_one("connections", 1, attack, prepare)
