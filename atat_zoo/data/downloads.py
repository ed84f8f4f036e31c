"""Files that lie elsewhere: one downloader for all of them, and a cache of bounded size for shards.

    <cache>/lock                     held while files come and go, not while something is fetched
    <cache>/<16 digits>              a folder of shards, named after its addresses and its manifest
      origin.json                    where the shards come from
      manifest.json, …               as in any folder of shards
      train-000007.tar               a shard that was fetched and had the right hash
      .train-000008.tar.123-5f.part  one that process 123 is fetching, with a lock on it; without, it is a leftover

The shard that was opened longest ago goes first. One that is open stays readable when it has left the cache.

No library does this: pooch (1.8) has no bound for an answer without end or too slow, asks again after a 404, and lets
two processes fetch the same file; the file cache of fsspec (2026.9) writes to the final name, and has neither a bound,
a hash nor a lock.
"""

import errno
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
from atat_zoo.system.atomic_files import clean, replacing, write_bytes
from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.locks import locked

ALLOW = "ATAT_ZOO_ALLOW_PIPE"  # set by `atat --allow-pipe`: an experiment file must not run a command by itself
COMMAND = ("pipe:", "|")
_BLOCK = 1 << 20  # bytes read at once
_LEAST = 1000  # bytes in a second, below which an answer is given up
_LATER = (408, 425, 429)  # the only answers from 400 to 499 that another attempt may change
_NAME = re.compile(rf"(?:{'|'.join(SPLITS)})-\d{{6}}\.tar")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_RANGE = re.compile(r"(?:(-?\d+)\.\.(-?\d+)|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?(\d+))?")  # in braces
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_MOST = 1_000_000  # files that a text with braces may stand for
_SMALL = 1 << 28  # bytes of a file that is no shard, at most
_PAUSE, _LONGEST = 0.5, 30.0  # seconds before a second attempt, twice as long before each further one
_LOOK = 0.05  # seconds between two looks at what another process is fetching
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FailedError(Exception):
    """Nothing came from an address, or another file than should; `final` if another attempt would change nothing."""

    def __init__(self, reason: str, final: bool = False, other: bool = False) -> None:
        super().__init__(reason)
        self.final, self.other = final, other


def refuse_commands(*addresses: str, key: str = "corpus.tars") -> None:
    """Refuse addresses that are commands, unless that is allowed; `key` names them in the message."""
    for address in addresses:
        if address.startswith(COMMAND) and os.environ.get(ALLOW) != "1":
            raise UserError(
                f"{key}: {clip(address)} would run a command in a shell; if you trust it, allow it with "
                f"`atat --allow-pipe …`, or with {ALLOW}=1 in the environment of the launcher"
            )


def copy(address: str, into: IO[bytes], most: int, sha256: str | None, timeout: float, bound: str = "") -> str:
    """Copy what an address has to a file, from its beginning, and return its SHA-256.

    Until it is complete, the file keeps its size. `bound` says what `most`, the bytes that it may have, is; it is the
    size of the right file where nothing is said.
    """
    into.seek(0)
    digest, size = hashlib.sha256(), 0
    said = f"it has more than {most:,} bytes, {bound}" if bound else "it is larger than it should be"
    too_large = FailedError(said, final=bool(bound), other=not bound)
    for block in _blocks(address, timeout, most, too_large):
        size += len(block)
        if size > most:
            raise too_large
        digest.update(block)
        into.write(block)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise FailedError(f"its SHA-256 is {digest.hexdigest()}, and should be {sha256}", other=True)
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
    except Exception as error:  # every store has its own
        raise FailedError(str(error) or type(error).__name__) from None


def _answered(address: str, timeout: float, most: int, too_large: FailedError) -> Iterator[bytes]:
    """Yield what comes over HTTP by Python's own library, whose every read has a time limit; a slow one fails, too."""
    with urllib.request.urlopen(address, timeout=timeout) as answer:
        if (answer.length or 0) > most:
            raise too_large
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


def _printed(command: str, timeout: float) -> Iterator[bytes]:
    with subprocess.Popen(command, shell=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield from iter(partial(process.stdout.read, _BLOCK), b"")
            if code := process.wait(timeout):
                raise OSError(f"the command ends with {code}")
        finally:
            process.kill()


def _stored(address: str) -> Iterator[bytes]:
    """Yield what lies in a store that fsspec reads."""
    import fsspec

    try:
        store, path = fsspec.url_to_fs(address)
    except ImportError as error:
        package = error.__cause__.name if isinstance(error.__cause__, ImportError) else None
        install = f"run `pip install {package}`" if package else str(error)
        raise UserError(f"{address} needs a package that is not installed; {install}") from None
    except ValueError as error:
        raise UserError(f"{address} cannot be read as an address ({error}); see corpus.path") from None
    if (kind := store.info(path)["type"]) != "file":  # a device never ends
        raise FailedError(f"it is not a file, but of the type {kind!r}", final=True)
    with store.open(path, "rb") as stream:
        yield from iter(partial(stream.read, _BLOCK), b"")


@attrs.frozen(kw_only=True)
class Origin:
    """Where the shards of a cache come from: the parameters of the corpus `shards`."""

    path: str
    tars: tuple[str, ...]
    cache: str
    cache_size: float  # GB
    retries: int
    timeout: float  # seconds

    def folder(self) -> Path:
        """Return the folder in the cache, with everything but the shards."""
        if "{" in self.path or "::" in self.path or self.path.startswith(COMMAND):
            raise UserError(f"corpus.path: {self.path} is not one folder; name single tar files in corpus.tars")
        for addresses in _expanded(self.tars).values():
            refuse_commands(*addresses)
        data = self._small(shard_manifest.FILE)
        contents = shard_manifest.parse(data, self._beside(shard_manifest.FILE), "name another folder in corpus.path")
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
        """Open a shard that has the right hash, fetched first unless it is in the cache."""
        path = folder / shard.name
        # No number alone before `.part`: by it `clean` decides, which must not decide about shards.
        part = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
        with _writing(self.cache):
            while True:
                with suppress(FileNotFoundError):
                    file = path.open("rb")
                    if hash_of(file) == shard.sha256:
                        with suppress(FileNotFoundError):
                            os.utime(path)  # the newest
                        return file
                    file.close()
                    with _alone(folder):
                        path.unlink()  # damaged here
                if into := self._room_for(path, part, shard.bytes):
                    break
            try:
                with into:
                    self._fetch(shard.name, into, shard.bytes, shard.sha256)
                    with _alone(folder):
                        into.close()  # which ends its lock
                        return part.replace(path).open("rb")  # now: it may leave the cache at once
            finally:
                with _alone(folder):
                    part.unlink(missing_ok=True)

    def _room_for(self, path: Path, part: Path, size: int) -> IO[bytes] | None:
        """Return a locked file of that size to fetch into, or None once another process has fetched the shard.

        With it, the shards in the cache take no more than the bound, or it is the only one.
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
                        os.posix_fallocate(file.fileno(), 0, size)  # a full disk says so now
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
    """Return a name for the file of an address, which no other address has: two may end in `data.zip`."""
    name = re.sub(r"[^\w.-]", "_", re.sub(r"[?#].*", "", address).rpartition("/")[2])[-100:]
    return f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"


def fetched(address: str, folder: Path, retries: int, timeout: float, key: str, largest: float) -> Path:
    """Return the file that an address has, in a folder; what is there already is not asked for again.

    `key`, as `corpus.train`, names the address in messages, and `corpus.largest` how many GB the file may have.
    """
    path = folder / file_name(address)
    if path.is_file():
        return path
    with _writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", lambda _: None):
            if not path.is_file():
                clean(folder)
                name, bound = path.name.partition("-")[2], (round(largest * 1e9), "the most that corpus.largest allows")
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
    """Fetch the file that an address has, whole or not at all, and return its SHA-256.

    It has to be of that size in bytes and that SHA-256 in lower-case hexadecimal, where they are known. A file of
    unknown size has at most the bytes of `bound`, which says what they are, and nine tenths of the disk's free space.
    A `UserError` says that the path, or `name`, cannot be fetched, why, by which `key` it is named, and what mends it:
    `mend`, or `other` where another file came.
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
                raise FailedError(f"{address}: it has {file.tell():,} bytes, and should have {size:,}", other=True)
        except FailedError as error:
            raise _not_fetched(name or str(path), error, f"{key} is", mend, other) from None
    return found


def expanded(text: str, key: str) -> list[str]:
    """Return the addresses or paths that a text with braces stands for, as webdataset expands them."""
    try:
        number = sum(map(_alternatives, text.split("::")))
        if number <= _MOST:
            from webdataset.shardlists import expand_urls  # which takes a second

            return [*expand_urls(text)]
    except Exception as error:  # asserts, and what its package for braces raises
        raise UserError(f"{key}: {text} cannot be expanded ({error}); mend its braces") from None
    raise UserError(f"{key}: {clip(text)} stands for {number:,} files, and may for {_MOST:,}; name fewer at a time")


def _alternatives(text: str) -> int:
    """Return how many texts a text with braces stands for, without making them."""
    open_braces: list[int] = []
    sums, products = [0], [1]  # of the alternatives of each open brace: the finished ones, and the present one
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
    """Return whether a text is an address and no path of a folder."""
    return bool(_ADDRESS.match(path)) or path.startswith(COMMAND)


def origin_of(folder: Path) -> Origin | None:
    """Return where the shards of a folder come from, or None for a folder that is no cache."""
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
    """Return the SHA-256 of an open file in hexadecimal, and go back to its beginning."""
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return digest


@contextmanager
def _writing(cache: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        mend = "free some space, lower corpus.cache_size" if error.errno in _FULL else "see that it can be written"
        raise UserError(
            f"corpus.cache: {cache} cannot be used ({error.strerror or error}); {mend} or name another folder, and "
            "run the same command again"
        ) from None


def _alone(folder: Path) -> AbstractContextManager[None]:
    return locked(folder.parent / "lock", lambda _: None)


def _removed(part: Path) -> bool:
    """Remove a file that nobody fetches into any longer, and return whether it was one."""
    with part.open("rb") as file, suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: over NFS, the other asks to write
        part.unlink()
        return True
    return False


@cache
def _expanded(tars: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the addresses of each shard, by its name, in the order in which they are tried."""
    addresses_of: dict[str, list[str]] = {}
    for text in tars:
        for address in expanded(text, "corpus.tars"):
            names = _NAME.findall(address)
            if not names:
                raise UserError(
                    f"corpus.tars: {address} does not name a shard as the manifest does, like train-000000.tar"
                )
            addresses_of.setdefault(names[-1], []).append(address)
    return addresses_of


def _first_of(
    addresses: list[str], into: IO[bytes], most: int, sha256: str | None, retries: int, timeout: float, bound: str = ""
) -> str:
    """Copy what the first address has that can be read, now or later, and return its SHA-256."""
    failures: dict[str, FailedError] = {}
    for attempt in range(retries + 1):
        for address in addresses:
            try:
                return copy(address, into, most, sha256, timeout, bound)
            except FailedError as error:
                # Once, another file may be a fault on the way.
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
        return UserError(f"{name} cannot be fetched ({error}); {other or 'put the file of the manifest there again'}")
    slow = "raise corpus.retries if the other side is slow, then run the same command again"
    return UserError(f"{name} cannot be fetched ({error}); {mend or f'see whether {right} right and {slow}'}")
