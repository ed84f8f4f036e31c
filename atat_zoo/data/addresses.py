"""What is at an address, block by block: over HTTP, in a store that fsspec reads, or printed by a command."""

import hashlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from atat_zoo.errors import UserError, clip

ALLOW = "ATAT_ZOO_ALLOW_PIPE"  # set by `atat --allow-pipe`: an experiment file must not run a command by itself
COMMAND = ("pipe:", "|")
_BLOCK = 1 << 20  # bytes read at once
_LEAST = 1000  # bytes in a second, below which an answer is given up
_LATER = (408, 425, 429)  # the only answers from 400 to 499 that another attempt may change


class FailedError(Exception):
    """Nothing came from an address, or another file than should; `final` if another attempt would change nothing."""

    def __init__(self, reason: str, final: bool = False, other: bool = False) -> None:
        super().__init__(reason)
        self.final, self.other = final, other


class _TooLargeError(Exception):
    pass


def refuse_commands(*addresses: str, key: str = "corpus.tars") -> None:
    """Refuse addresses that are commands, unless that is allowed; `key` names them in the message."""
    for address in addresses:
        if address.startswith(COMMAND) and os.environ.get(ALLOW) != "1":
            raise UserError(
                f"{key}: {clip(address)} would run a command in a shell; if you trust it, say so with "
                f"`atat --allow-pipe …`, or with {ALLOW}=1 in the environment of the launcher"
            )


def copy(address: str, into: IO[bytes], most: int, sha256: str | None, timeout: float, bound: str = "") -> str:
    """Copy what an address has to a file, from its beginning, and return its SHA-256.

    Until it is complete, the file keeps its size. `bound` says what `most`, the bytes that it may have, is; it is the
    size of the right file where nothing is said.
    """
    into.seek(0)
    digest, left = hashlib.sha256(), most
    try:
        for block in _blocks(address, timeout, most):
            left -= len(block)
            if left < 0:
                raise _TooLargeError
            digest.update(block)
            into.write(block)
    except _TooLargeError:
        if bound:
            raise FailedError(f"it has more than {most:,} bytes, {bound}", final=True) from None
        raise FailedError("it is larger than it should be", other=True) from None
    if sha256 is not None and digest.hexdigest() != sha256:
        raise FailedError(f"its SHA-256 is {digest.hexdigest()}, and should be {sha256}", other=True)
    into.truncate()
    return digest.hexdigest()


def _blocks(address: str, timeout: float, most: int) -> Iterator[bytes]:
    try:
        if address.lower().startswith(("http://", "https://")):
            yield from _answered(address, timeout, most)
            return
        with _source(address, timeout) as file:
            while block := file.read(_BLOCK):
                yield block
    except urllib.error.HTTPError as error:
        error.close()
        final = 400 <= error.code < 500 and error.code not in _LATER
        raise FailedError(f"HTTP {error.code} {error.reason}", final) from None
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise FailedError(error.strerror or type(error).__name__, final=True) from None
    except (UserError, FailedError, _TooLargeError):
        raise
    except Exception as error:  # every store has its own
        raise FailedError(str(error) or type(error).__name__) from None


def _answered(address: str, timeout: float, most: int) -> Iterator[bytes]:
    """Yield what comes over HTTP by Python's own library, whose every read has a time limit; a slow one fails, too."""
    with urllib.request.urlopen(address, timeout=timeout) as answer:
        if (answer.length or 0) > most:
            raise _TooLargeError
        remaining, received, since = answer.length, 0, time.monotonic()  # None where no length is announced
        while remaining != 0 and (block := answer.read1(min(_BLOCK, remaining or _BLOCK))):
            yield block
            remaining, received = remaining and remaining - len(block), received + len(block)
            if remaining != 0 and time.monotonic() - since > timeout:
                if received < _LEAST * timeout:
                    raise TimeoutError(f"fewer than {_LEAST:,} bytes of it come in a second")
                received, since = 0, time.monotonic()
        if remaining:  # it raises nothing itself
            raise OSError(f"its last {remaining} bytes are missing")


@contextmanager
def _source(address: str, timeout: float) -> Iterator[IO[bytes]]:
    """Open an address that is a command, or of a store, which fsspec reads."""
    refuse_commands(address)
    if address.startswith(COMMAND):
        command = address.removeprefix("pipe:").removeprefix("|")
        with subprocess.Popen(command, shell=True, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                yield process.stdout
                if code := process.wait(timeout):
                    raise OSError(f"the command ends with {code}")
            finally:
                process.kill()
    else:
        import fsspec

        try:
            store, path = fsspec.url_to_fs(address)
        except ImportError as error:
            package = error.__cause__.name if isinstance(error.__cause__, ImportError) else None
            install = f"run `pip install {package}`" if package else str(error)
            raise UserError(f"{address} needs a package that is not installed; {install}") from None
        except ValueError as error:
            raise UserError(f"{address} is no address that can be read ({error}); see corpus.path") from None
        if (kind := store.info(path)["type"]) != "file":  # a device never ends
            raise FailedError(f"it is no file, but of the type {kind!r}", final=True)
        with store.open(path, "rb") as stream:
            yield stream
