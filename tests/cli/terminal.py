"""`atat` in this process or in one of its own, also on a terminal, and what it says."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys

from tests import forked

END = b"\0"
CALL = "from atat_zoo.cli import main; main()"
SEVERAL = """
import json, sys
from atat_zoo.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["atat", *words]
    try:
        main()
    except SystemExit as left:
        print(json.dumps([left.code, [name for name in NAMES if name in sys.modules]]), file=sys.stderr)
"""


def printed(atat, *words):
    """Return what a command that succeeds prints, which is nothing on standard error."""
    code, out, err = atat(*words)
    assert (code, err) == (0, "")
    return out


def refused(atat, *words):
    """Return the one sentence with which a command ends that prints nothing else."""
    code, out, err = atat(*words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    return line


def spawned(*words, call=CALL, **how):
    """Run the command in a process of its own, which has ended."""
    streams = {} if "stdout" in how or "stderr" in how else {"capture_output": True}
    return subprocess.run([sys.executable, "-c", call, *words], text=True, check=False, **streams, **how)


def imported(commands, names, **how):
    """Run commands in one process; returns for each its exit code, and which of the modules were imported by then."""
    call = f"NAMES = {names!r}\n{SEVERAL}"
    done = spawned(json.dumps(commands), call=call, env=os.environ | {"ATAT_ZOO_PLUGINS": ""}, **how)
    found = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    assert len(found) == len(commands), done.stderr
    return found


def received(descriptor, process, other_end):
    """Yield what a terminal gets until its process has ended.

    The caller keeps the other end open meanwhile: where the last writer is gone, what was not read yet may be, too. A
    terminal passes on what was written in its own time, so that only a mark behind it shows that all has come.
    """
    for _ in range(300):
        ended = process.poll() is not None
        while select.select([descriptor], [], [], 0.2)[0]:
            yield os.read(descriptor, 1 << 16)
        if ended:
            break
    else:
        raise AssertionError("it does not end")
    os.write(other_end, END)
    rest = b""
    while not rest.endswith(END):
        assert select.select([descriptor], [], [], 60)[0], "the mark does not come"
        rest += os.read(descriptor, 1 << 16)
    yield rest.removesuffix(END)


def on_terminal(*words, cwd=None, interrupt_after=None):
    """Return the exit code, and what the terminal got; Ctrl-C is pressed when that many masks were drawn.

    With a folder, the process is forked: it has what it needs imported, but not the handler of Composer, which is there
    for trainings only.
    """
    main_end, process_end = pty.openpty()
    env = os.environ | {"COLUMNS": "60", "TERM": "xterm"}
    if cwd:
        terminal = f"os.open({os.ttyname(process_end)!r}, os.O_RDWR | os.O_NOCTTY)"
        code = f"import os, signal; terminal = {terminal}; os.dup2(terminal, 1); os.dup2(terminal, 2); "
        code += f"signal.signal(signal.SIGINT, signal.default_int_handler); {CALL}"
        process = forked.Atat(words, cwd, env=env, code=code)
    else:
        command = [sys.executable, "-c", CALL, *words]
        process = subprocess.Popen(command, stdout=process_end, stderr=process_end, env=env)
    data = b""
    for piece in received(main_end, process, process_end):
        data += piece
        if interrupt_after is not None and data.count("▁".encode()) > interrupt_after:
            process.send_signal(signal.SIGINT)
            interrupt_after = None
    os.close(process_end)
    os.close(main_end)
    text = data.decode("utf-8", "replace")
    assert "Traceback" not in text
    process.communicate(timeout=60)
    return process.returncode, text
