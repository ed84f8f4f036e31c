"""`atat serve` under connections that say nothing or half of something: it answers others, and ends without a word."""

import json
import signal
import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

from tests import forked
from tests.attack.driver import FAILED, FINE, Verdict, last_words, one_by_one
from tests.tiny import Tiny

FILES = 256  # that the server may have open
CODE = f"""import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
from atat_zoo.cli import main
main()"""
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


def attack(draw, number, seed, base, work):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process, why = forked.Atat(["serve", "run", "--port", str(port)], base, code=CODE), ""
    with ExitStack() as stack:
        try:
            until_it_answers(port)
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
        if not process.wait(60):
            why = why or "it does not end"
            process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
    if not why and (process.returncode or err):
        why = f"exit code {process.returncode}, {len(err):,} characters on the terminal: {last_words(out + err)}"
    return Verdict(FAILED if why else FINE, why)


def until_it_answers(port):
    for _ in range(600):
        with suppress(ConnectionError):
            return socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(0.1)
    raise TimeoutError("for a minute")


KIND = one_by_one("connections", 1, attack, prepare)
