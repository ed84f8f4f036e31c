"""The command `atat serve`, which serves a run over HTTP."""

import os
import re
import socket
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from atat_zoo.cli.arguments import chosen, count, options
from atat_zoo.system.errors import Note, UserError, clip
from atat_zoo_serve import Limits

_LIMITS = Limits()


@click.command()
@options("run", "overrides", "step", "sampler")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; use 0.0.0.0 for all interfaces."
)
@click.option(
    "--port",
    default=8422,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to use; 0 picks a free one.",
)
@click.option("--key", envvar="ATAT_KEY", help="API key that clients must send (default: $ATAT_KEY).")
@click.option(
    "--cors",
    multiple=True,
    help="Allowed CORS origin, such as http://localhost:3000, or * for all; can be repeated.",
)
@options("device", "same_precision")
@click.option("--compile", is_flag=True, help="Compile the network at startup, which takes about a minute.")
@count("--max-length longest", 1, "Maximum number of tokens per text.", _LIMITS.longest)
@count("--batch-size", 1, "Maximum number of texts per batch and per request.", _LIMITS.batch_size)
@count("--max-queue waiting", 1, "Maximum number of requests in the queue.", _LIMITS.waiting)
@click.option(
    "--timeout",
    "seconds",
    default=_LIMITS.seconds,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Maximum duration of a request in seconds, including its time in the queue.",
)
def serve(
    run: Path,
    overrides: tuple[str, ...],
    step: int | str | None,
    sampler: str | None,
    host: str,
    port: int,
    key: str | None,
    cors: tuple[str, ...],
    device: str,
    precision: Any,
    compile: bool,
    **limits: Any,
) -> None:
    """Serve RUN over HTTP until Ctrl-C, with an API that is compatible with OpenAI's completions and chat completions.

    The web page at `/` shows texts as they unmask. Pass `sampler.KEY=VALUE` and `guidance.use=…` to change the sampler
    and the guidance.
    """
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise UserError(
            "--key is empty or contains characters not allowed in a header; use ASCII letters, digits and punctuation"
        )
    for origin in cors:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise UserError(
                f"--cors {clip(origin)} is not an origin; use one without a path, such as http://localhost:3000, or *"
            )
    experiment, tokenizer = chosen(run, overrides, sampler, step)
    here = host in ("127.0.0.1", "localhost", "::1")
    listening = _listening(host, port)
    with listening, suppress(KeyboardInterrupt):  # Ctrl-C ends the server
        if not here:
            who = "requests with the key" if key else "all requests, because --key is not set"
            warnings.warn(
                f"--host {host}: other machines can reach this server, without encryption; it accepts {who}",
                Note,
                stacklevel=2,
            )
        from atat_zoo.generation.model import Model
        from atat_zoo_serve.http_server import Server
        from atat_zoo_serve.service import Service

        model = Model.from_run(run, device, step, experiment=experiment, tokenizer=tokenizer)
        service = Service.of_model(
            run.resolve().name,
            model,
            limits=Limits(**limits),
            precision=precision,
            compile=compile,
            key=key,
            here=here,
            cors=cors,
        )
        address, number = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        click.echo(f"{run} is served at http://{shown}:{number}/ until Ctrl-C")
        Server(service).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the host and port, or raise a `UserError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except socket.gaierror as error:
        problem = str(error.strerror)
    except UnicodeError:
        problem = "invalid host name"
    except OSError as error:
        problem = os.strerror(error.errno or 0)
    where = f"--host {clip(host)} --port {port}"
    raise UserError(f"cannot listen on {where}: {problem}; choose a different host or port (0 for a free port)")
