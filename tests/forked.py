"""`atat`, many times, without importing torch and Composer anew for each.

A server imports them once and forks for every command: a real process, with its own folder, environment, output and
end, in a fraction of the time. That the console scripts start by themselves is tested elsewhere (`tests/test_wheel.py`,
`tests/cli`).
"""

import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.preloaded"])
# Code in place of `atat`, with pytest's arguments; it would warn of plugins that are imported already.
_REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"
PYTEST = f"import sys, pytest; sys.exit(pytest.main(['-W', {_REWRITTEN!r}, *sys.argv[1:]]))"
# The exit code of a process can be read once, and every start reads those of all that have ended.
_ONE_READER = threading.Lock()


class Atat:
    """A process that runs `atat` with `words` as its arguments in the folder `cwd`; used like `subprocess.Popen`."""

    def __init__(
        self,
        words,
        cwd,
        *,
        env=None,  # variables besides those of this process
        code=None,  # Python that runs in place of `atat`, with the same arguments
        file_limit=None,  # bytes that a file may have: how a full disk looks to a writer
        space=None,  # bytes of addresses that it may have: what it asks for beyond them fails at once
        merged=False,  # whether standard error goes where standard output goes
    ):
        self.words, self.merged = list(words), merged
        self.memory = 0  # bytes, at most, once it has ended by itself
        self._printed = tempfile.TemporaryDirectory()
        names = ("out", "out" if merged else "err", "memory")
        self._files = [str(Path(self._printed.name) / name) for name in names]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        limits = {resource.RLIMIT_FSIZE: file_limit, resource.RLIMIT_AS: space}
        arguments = (self.words, str(cwd), variables, code, limits, self._files)
        self._process = SERVER.Process(target=_run, args=arguments)
        with _ONE_READER:
            self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    @property
    def returncode(self):
        """The exit code; negative for the signal that ended it, None while it runs."""
        with _ONE_READER:
            return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self, timeout):
        wait([self._process.sentinel], timeout)
        return self.returncode is not None

    def communicate(self, timeout=300):
        late = not self.wait(timeout)
        out, err = self.kill() if late else self._read()
        assert not late, f"atat {' '.join(self.words)} takes more than {timeout} s: {out}{err}"
        return out, err

    def _read(self):
        with self._printed:
            files = [Path(name) for name in self._files]
            out, err, memory = (file.read_text("utf-8", "backslashreplace") if file.exists() else "" for file in files)
        self.memory = int(memory or 0)
        return out, "" if self.merged else err

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """Kill it with all that it started; returns what it had printed."""
        # One that has just been started has no group of its own yet.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        wait([self._process.sentinel])
        return self._read()


def run(words, cwd, **how):
    """Run `atat …` to its end; `how` is as for `Atat`."""
    process = Atat(words, cwd, **how)
    out, err = process.communicate()
    assert process.returncode is not None
    return subprocess.CompletedProcess(["atat", *words], process.returncode, out, err)


def ranks(number, words, cwd, *, env=None, **how):
    """Begin `atat …` on several ranks, told of each other as a launcher tells them; `how` is as for `Atat`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": f"{number}", "LOCAL_WORLD_SIZE": f"{number}", "NODE_RANK": "0", "MASTER_PORT": f"{port}"}
    shared |= {"MASTER_ADDR": "127.0.0.1", **(env or {})}
    told = [{**shared, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(number)]
    return [Atat(words, cwd, env=variables, merged=True, **how) for variables in told]


def _run(words, folder, env, code, limits, files):
    """Become the process that was asked for; runs in the child."""
    multiprocessing.set_start_method(None, force=True)  # what it starts, it starts as it would by itself
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    # As for the console script, packages are not looked for in the working folder, which the server's '' stands for.
    named = [str(Path(folder, entry)) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*named, *filter(None, sys.path)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    out, err, memory = (os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in files)
    for target, source in enumerate((nothing, out, err)):
        os.dup2(source, target)
    for kind, limit in limits.items():
        if limit:
            resource.setrlimit(kind, (limit, limit))
    sys.argv = ["atat", *words]
    owner = os.getpid()
    try:
        if code:
            exec(code, {"__name__": "__main__"})
        else:
            from atat_zoo.cli import main

            main()
    finally:
        if os.getpid() == owner:  # and none that it has forked
            os.write(memory, str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10).encode())
