"""Download files, and cache downloaded shards within a size limit.

    <cache>/lock                     locked while files are added or deleted, not during downloads
    <cache>/<16 digits>              a folder of shards, named by a hash of its URLs and manifest
      origin.json                    the URLs of the shards
      manifest.json, …               as in any folder of shards
      train-000007.tar               a downloaded shard with the correct hash
      .train-000008.tar.123-5f.part  a download by process 123 if locked, else left by a killed process

A full cache first deletes the shard that was opened least recently. An open shard stays readable after it is deleted.

No library does this: pooch (1.8) does not limit endless or slow responses, retries after a 404, and lets two processes
download the same file. The file cache in fsspec (2026.9) writes to the final name without a size limit, a hash or a
lock.
"""

import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import string
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import IO

import attrs

from atat_zoo.data import SPLITS, shard_manifest
from atat_zoo.data.shard_manifest import Shard
from atat_zoo.system.atomic_files import FULL, clean, replacing, write_bytes
from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.locks import locked

ALLOW = "ATAT_ZOO_ALLOW_PIPE"  # set by `atat --allow-pipe`: an experiment file must not run a command by itself
COMMAND = ("pipe:", "|")
_BLOCK = 1 << 20  # bytes read at once
_LEAST = 1000  # bytes per second, below which a download is abandoned
_LATER = (408, 425, 429)  # the only status codes from 400 to 499 for which a retry may help
_NAME = re.compile(rf"(?:{'|'.join(SPLITS)})-\d{{6}}\.tar")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_RANGE = re.compile(r"(?:(-?\d+)\.\.(-?\d+)|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?(\d+))?")  # in braces
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_MOST = 1_000_000  # maximum number of files that braces may expand to
_SMALL = 1 << 28  # maximum size in bytes of a file that is not a shard
_PAUSE, _LONGEST = 0.5, 30.0  # seconds before the first retry, doubled before each further one; the maximum
_LOOK = 0.05  # seconds between two checks of another process's download


class FailedError(Exception):
    """A download failed: the URL cannot be read or has a different file (`other`); if `final`, a retry cannot help."""

    def __init__(self, reason: str, final: bool = False, other: bool = False) -> None:
        super().__init__(reason)
        self.final, self.other = final, other


def refuse_commands(*addresses: str, key: str = "corpus.tars") -> None:
    """Raise a `UserError` that begins with `key` if an address runs a shell command, unless the user allows these."""
    for address in addresses:
        if address.startswith(COMMAND) and os.environ.get(ALLOW) != "1":
            raise UserError(
                f"{key}: {clip(address)} would run a shell command; if you trust it, run `atat --allow-pipe …`, or "
                f"set {ALLOW}=1 in the environment of the launcher"
            )


def copy(address: str, into: IO[bytes], most: int, sha256: str | None, timeout: float, bound: str = "") -> str:
    """Overwrite the open file `into` with the content of a URL, and return the SHA-256 of the content in hexadecimal.

    A `FailedError` is raised if the URL cannot be read (`timeout`: see the `shards` corpus), if the content has more
    than `most` bytes, described in the message by `bound`, or if its SHA-256 is not `sha256`.
    """
    into.seek(0)
    digest, size = hashlib.sha256(), 0
    said = f"it has more than {most:,} bytes, {bound}" if bound else "it is larger than expected"
    too_large = FailedError(said, final=bool(bound), other=not bound)
    for block in _blocks(address, timeout, most, too_large):
        size += len(block)
        if size > most:
            raise too_large
        digest.update(block)
        into.write(block)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise FailedError(f"its SHA-256 is {digest.hexdigest()}, but should be {sha256}", other=True)
    into.truncate()
    return digest.hexdigest()


def _blocks(address: str, timeout: float, most: int, too_large: FailedError) -> Iterator[bytes]:
    refuse_commands(address)
    try:
        if address.lower().startswith(("http://", "https://")):
            yield from _answered(address, timeout, most, too_large)
        elif address.startswith(COMMAND):
            yield from _printed(address.removeprefix("pipe:").removeprefix("|"), timeout)
        else:
            yield from _stored(address)
    except urllib.error.HTTPError as error:
        error.close()
        final = 400 <= error.code < 500 and error.code not in _LATER
        raise FailedError(f"HTTP {error.code} {error.reason}", final) from None
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise FailedError(error.strerror or type(error).__name__, final=True) from None
    except (UserError, FailedError):
        raise
    except Exception as error:  # each kind of store raises errors of its own
        raise FailedError(str(error) or type(error).__name__) from None


def _answered(address: str, timeout: float, most: int, too_large: FailedError) -> Iterator[bytes]:
    """Yield the blocks of an HTTP response; raise an error if a read times out or the response is too slow."""
    with urllib.request.urlopen(address, timeout=timeout) as answer:
        if (answer.length or 0) > most:
            raise too_large
        remaining, received, since = answer.length, 0, time.monotonic()  # None where no length is announced
        while remaining != 0 and (block := answer.read1(min(_BLOCK, remaining or _BLOCK))):
            yield block
            remaining, received = remaining and remaining - len(block), received + len(block)
            if remaining != 0 and time.monotonic() - since > timeout:
                if received < _LEAST * timeout:
                    raise TimeoutError(f"it arrives at less than {_LEAST:,} bytes per second")
                received, since = 0, time.monotonic()
        if remaining:  # the library does not raise an error
            raise OSError(f"its last {remaining} bytes are missing")


def _printed(command: str, timeout: float) -> Iterator[bytes]:
    with subprocess.Popen(command, shell=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield from iter(partial(process.stdout.read, _BLOCK), b"")
            if code := process.wait(timeout):
                raise OSError(f"the command exited with code {code}")
        finally:
            process.kill()


def _stored(address: str) -> Iterator[bytes]:
    """Yield the content of a file from a store that fsspec can read."""
    import fsspec

    try:
        store, path = fsspec.url_to_fs(address)
    except ImportError as error:
        package = error.__cause__.name if isinstance(error.__cause__, ImportError) else None
        install = f"run `pip install {package}`" if package else str(error)
        raise UserError(f"{address} needs a package that is not installed; {install}") from None
    except ValueError as error:
        raise UserError(f"{address} is not a valid URL ({error}); correct it") from None
    if (kind := store.info(path)["type"]) != "file":  # a device never ends
        raise FailedError(f"it is of type {kind!r}, not a file", final=True)
    with store.open(path, "rb") as stream:
        yield from iter(partial(stream.read, _BLOCK), b"")


@attrs.frozen(kw_only=True)
class Origin:
    """The URLs and download settings of the shards in a cache, from the parameters of the `shards` corpus."""

    path: str
    tars: tuple[str, ...]
    cache: str
    cache_size: float  # GB
    retries: int
    timeout: float  # seconds

    def folder(self) -> Path:
        """Return the shards' folder in the cache, after downloading the manifest and the other small files to it."""
        if "{" in self.path or "::" in self.path or self.path.startswith(COMMAND):
            raise UserError(
                f"corpus.path: {self.path} is not the URL of one folder; name one, and list tar files in corpus.tars"
            )
        for addresses in _expanded(self.tars).values():
            refuse_commands(*addresses)
        data = self._small(shard_manifest.FILE)
        contents = shard_manifest.parse(data, self._beside(shard_manifest.FILE), "change corpus.path")
        key = hashlib.sha256(json.dumps([self.path, self.tars]).encode() + data).hexdigest()[:16]
        folder, origin = Path(self.cache) / key, json.dumps(attrs.asdict(self), indent=1).encode()
        with _writing(self.cache):
            folder.mkdir(parents=True, exist_ok=True)
            absent = {name: sha256 for name, sha256 in contents.sha256.items() if not (folder / name).is_file()}
            small = {name: self._small(name, sha256) for name, sha256 in absent.items()}
            with _alone(folder):
                for name, content in (small | {shard_manifest.ORIGIN: origin, shard_manifest.FILE: data}).items():
                    if not (folder / name).is_file() or (folder / name).read_bytes() != content:
                        write_bytes(folder / name, content)
        return folder

    def open(self, folder: Path, shard: Shard) -> IO[bytes]:
        """Return a shard as an open file after checking its hash; download it if needed, or await another download."""
        path = folder / shard.name
        # Not just a number before `.part`: `clean` would take it for a process id, and must not delete shards.
        part = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
        with _writing(self.cache):
            while True:
                with suppress(FileNotFoundError):
                    file = path.open("rb")
                    if hash_of(file) == shard.sha256:
                        with suppress(FileNotFoundError):
                            os.utime(path)  # now the newest shard
                        return file
                    file.close()
                    with _alone(folder):
                        path.unlink()  # the copy in the cache is damaged
                if into := self._room_for(path, part, shard.bytes):
                    break
            try:
                with into:
                    self._fetch(shard.name, into, shard.bytes, shard.sha256)
                    with _alone(folder):
                        into.close()  # this releases its lock
                        return part.replace(path).open("rb")  # now, because it may leave the cache at any time
            finally:
                with _alone(folder):
                    part.unlink(missing_ok=True)

    def _room_for(self, path: Path, part: Path, size: int) -> IO[bytes] | None:
        """Return a locked file of the given size to download to, or None if another process has downloaded the shard.

        The shards in the cache, including this one, stay within the size limit, unless this is the only shard.
        """
        most = round(self.cache_size * 1e9)
        while True:
            with _alone(path.parent):
                folders = [origin.parent for origin in path.parent.parent.glob(f"*/{shard_manifest.ORIGIN}")]
                for folder in folders:
                    clean(folder)
                if path.exists():
                    return None
                parts = (other for folder in folders for other in folder.glob(".*.tar.*.part"))
                fetching = [other for other in parts if not _removed(other)]
                taken = size + sum(other.stat().st_size for other in fetching)
                mine = f".{path.name}."
                same = any(other.parent == path.parent and other.name.startswith(mine) for other in fetching)
                if not same and (taken <= most or not fetching):
                    whole = [(tar, tar.stat()) for folder in folders for tar in folder.glob("*.tar")]
                    taken += sum(stat.st_size for _, stat in whole)
                    for oldest, stat in sorted(whole, key=lambda entry: entry[1].st_mtime_ns):
                        if taken <= most:
                            break
                        oldest.unlink()
                        taken -= stat.st_size
                    file = part.open("xb+")
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX)
                        os.posix_fallocate(file.fileno(), 0, size)  # a full disk fails here
                    except OSError:
                        file.close()
                        part.unlink()
                        raise
                    return file
            time.sleep(_LOOK)

    def _small(self, name: str, sha256: str | None = None) -> bytes:
        file = io.BytesIO()
        self._fetch(name, file, _SMALL, sha256)
        return file.getvalue()

    def _fetch(self, name: str, into: IO[bytes], most: int, sha256: str | None) -> None:
        addresses = _expanded(self.tars).get(name, [self._beside(name)])
        try:
            _first_of(addresses, into, most, sha256, self.retries, self.timeout)
        except FailedError as error:
            raise _not_fetched(name, error, "corpus.path and corpus.tars are") from None

    def _beside(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"


def file_name(address: str) -> str:
    """Return a file name for a URL that no other URL has, even if both end in `data.zip`."""
    name = re.sub(r"[^\w.-]", "_", re.sub(r"[?#].*", "", address).rpartition("/")[2])[-100:]
    return f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"


def fetched(address: str, folder: Path, retries: int, timeout: float, key: str, largest: float) -> Path:
    """Return the path of the file that a URL names, downloading it to a folder unless it exists.

    `largest`: maximum size in GB. A failed download raises a `UserError` that names `key`, such as `corpus.train`.
    """
    path = folder / file_name(address)
    if path.is_file():
        return path
    with _writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", lambda _: None):
            if not path.is_file():
                clean(folder)
                name, bound = path.name.partition("-")[2], (round(largest * 1e9), "the limit of corpus.largest")
                download(address, path, retries, timeout, key, name=name, bound=bound)
    return path


def download(
    address: str,
    path: Path,
    retries: int,
    timeout: float,
    key: str,
    mend: str | None = None,
    *,
    other: str | None = None,
    name: str | None = None,
    size: int | None = None,
    sha256: str | None = None,
    bound: tuple[int, str] = (sys.maxsize, ""),
) -> str:
    """Download the file that a URL names, completely or not at all, and return its SHA-256.

    The file must match `size` (in bytes) and `sha256` (in lower-case hexadecimal) if they are given. A file of unknown
    size is limited to `bound`, a number of bytes and a description of this limit, and to nine tenths of the free disk
    space. If the download fails, a `UserError` names the path (or `name`), the reason, the `key` with the URL, and the
    remedy: `mend`, or `other` if the URL has a different file.
    """
    refuse_commands(address, key=key)
    with replacing(path) as beside, beside.open("wb") as file:
        try:
            most, why = bound
            if size is not None:
                most, why = size, ""
            elif (free := shutil.disk_usage(beside.parent).free * 9 // 10) < most:
                most, why = free, "nine tenths of the free space"
            found = _first_of([address], file, most, sha256, retries, timeout, why)
            if size is not None and file.tell() != size:
                raise FailedError(f"{address}: it has {file.tell():,} bytes, but should have {size:,}", other=True)
        except FailedError as error:
            raise _not_fetched(name or str(path), error, f"{key} is", mend, other) from None
    return found


def expanded(text: str, key: str) -> list[str]:
    """Return the URLs or paths that braces in a string expand to; raise a `UserError` that names `key` if invalid."""
    try:
        number = sum(map(_alternatives, text.split("::")))
        if number <= _MOST:
            from webdataset.shardlists import expand_urls  # which takes a second

            return [*expand_urls(text)]
    except Exception as error:  # asserts, and what its package for braces raises
        raise UserError(f"{key}: {text} cannot be expanded ({error}); correct its braces") from None
    raise UserError(f"{key}: {clip(text)} expands to {number:,} files, but the limit is {_MOST:,}; name fewer files")


def _alternatives(text: str) -> int:
    """Return the number of strings that a string with braces expands to, without creating them."""
    open_braces: list[int] = []
    sums, products = [0], [1]  # for each open brace, the number of finished and current alternatives
    for found in re.finditer(r"\\.|[{},]", text, re.DOTALL):
        sign = found[0]
        if sign == "{":
            open_braces.append(found.end())
            sums.append(0)
            products.append(1)
        elif sign == "," and open_braces:
            sums[-1] += products[-1]
            products[-1] = 1
        elif sign == "}" and open_braces:
            number = sums.pop() + products.pop()
            if values := _RANGE.fullmatch(text, open_braces.pop(), found.start()):
                first, last = map(int, values.group(1, 2)) if values[1] else map(_LETTERS.index, values.group(3, 4))
                number = abs(last - first) // (int(values[5] or 1) or 1) + 1
            products[-1] *= number
    return products[0]


def is_address(path: str) -> bool:
    """Return whether a string is a URL or a `pipe:` command, not a local path."""
    return bool(_ADDRESS.match(path)) or path.startswith(COMMAND)


def origin_of(folder: Path) -> Origin | None:
    """Return the `Origin` of the shards in a folder of a cache, None for others; raise `UserError` if it is damaged."""
    try:
        table = json.loads((folder / shard_manifest.ORIGIN).read_bytes())
        return Origin(**table | {"tars": tuple(table["tars"])})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{folder / shard_manifest.ORIGIN} cannot be read ({error}); delete the folder {folder}"
        ) from None


def hash_of(file: io.BufferedIOBase) -> str:
    """Return the SHA-256 of an open file in hexadecimal and rewind the file."""
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return digest


@contextmanager
def _writing(cache: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        mend = "free some space, lower corpus.cache_size" if error.errno in FULL else "make it writable"
        raise UserError(
            f"corpus.cache: {cache} cannot be used ({error.strerror or error}); {mend}, or set corpus.cache to "
            "a different folder, then run the same command again"
        ) from None


def _alone(folder: Path) -> AbstractContextManager[None]:
    return locked(folder.parent / "lock", lambda _: None)


def _removed(part: Path) -> bool:
    """Remove a file unless a process is downloading to it, and return whether it was removed."""
    with part.open("rb") as file, suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: over NFS, the other asks to write
        part.unlink()
        return True
    return False


@cache
def _expanded(tars: tuple[str, ...]) -> dict[str, list[str]]:
    """Return a dict from the name of each shard to its URLs, in the order in which they are tried."""
    addresses_of: dict[str, list[str]] = {}
    for text in tars:
        for address in expanded(text, "corpus.tars"):
            names = _NAME.findall(address)
            if not names:
                raise UserError(
                    f"corpus.tars: {address} does not contain the name of a shard, such as train-000000.tar"
                )
            addresses_of.setdefault(names[-1], []).append(address)
    return addresses_of


def _first_of(
    addresses: list[str], into: IO[bytes], most: int, sha256: str | None, retries: int, timeout: float, bound: str = ""
) -> str:
    """Copy the content of the first URL that can be read, retrying if needed, and return its SHA-256."""
    failures: dict[str, FailedError] = {}
    for attempt in range(retries + 1):
        for address in addresses:
            try:
                return copy(address, into, most, sha256, timeout, bound)
            except FailedError as error:
                # A single wrong file may be a transmission error.
                error.final |= error.other and address in failures and failures[address].other
                failures[address] = error
        addresses = [address for address in addresses if not failures[address].final]
        if addresses and attempt < retries:
            time.sleep(min(_LONGEST, _PAUSE * 2**attempt))
    told = "; ".join(f"{address}: {clip(reason)}" for address, reason in failures.items())
    raise FailedError(told, other=all(failure.other for failure in failures.values()))


def _not_fetched(
    name: str, error: FailedError, right: str, mend: str | None = None, other: str | None = None
) -> UserError:
    if error.other:
        return UserError(
            f"{name} cannot be downloaded ({error}); {other or 'restore the file that the manifest describes'}"
        )
    slow = "raise corpus.retries or corpus.timeout if the server is slow, then run the same command again"
    return UserError(f"{name} cannot be downloaded ({error}); {mend or f'check that {right} correct, and {slow}'}")
