"""Clients of OpenAI's interface, each in an environment of its own: `python client_environments.py [NAME]...`.

`make test-clients`. A tiny model is served here, and each client makes the thirty calls of calls.py.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import clients
from calls import calls, talking
from servers import listening, served

# What is installed, and what of clients.py it is.
ENVIRONMENTS = {
    "openai-2": ("openai>=2,<3", "openai"),
    "openai-3": ("openai>=3,<4", "openai"),
    "litellm": ("litellm", "litellm"),
    "langchain-openai": ("langchain-openai", "langchain"),
}


def main():
    names = sys.argv[1:] or list(ENVIRONMENTS)
    if unknown := set(names) - set(ENVIRONMENTS):
        sys.exit(f"there is no client {', '.join(sorted(unknown))}; there are {', '.join(ENVIRONMENTS)}")
    model = talking()
    asked = json.dumps(calls(model))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OPENAI_"))}
    env |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}  # which it would fetch from elsewhere
    failed = False
    for name in names:
        what, client = ENVIRONMENTS[name]
        with tempfile.TemporaryDirectory() as folder, listening(served(model)) as address:
            python = str(Path(folder) / "bin" / "python")
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, env=env)
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what]
            subprocess.run(install, check=True, env=env)
            words = [python, clients.__file__, client, f"{address}/v1"]
            failed |= bool(subprocess.run(words, input=asked, text=True, check=False, env=env).returncode)
    sys.exit(failed)


if __name__ == "__main__":
    main()
