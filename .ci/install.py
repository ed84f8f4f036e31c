"""Install packages into a virtual environment, creating it if it is missing: `install.py FOLDER ARGUMENT...`.

The arguments are those of `pip install`. uv, which takes a fraction of pip's time, installs the packages with pip's
settings. If PATH has no uv, pip installs it into the environment; if uv fails, pip installs the packages.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

# For each setting of pip, the variable from which uv reads it, and the separator of several values in this variable.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "no-cache-dir": ("UV_NO_CACHE", " "),
}
# pip treats all indexes alike; by default, uv uses only the first index that has a package.
ALIKE = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
# PyTorch's index has builds without CUDA, which are gigabytes smaller. It may be out of reach, so do not wait for it.
WITHOUT_CUDA = {"UV_TORCH_BACKEND": "cpu", "UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "3"}
# The drivers of NVIDIA under Linux and under Windows, and of AMD.
DRIVERS = ("/proc/driver/nvidia/version", "/dev/dxg", "/dev/kfd")
PIP_INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", "constraints.txt")


def variables_for(settings: str) -> dict[str, str]:
    """Return uv's environment variables for the output of `pip config list`."""
    found: dict[str, str] = {}
    lines = [line.partition("=")[::2] for line in settings.splitlines()]
    for section in ("global.", "install.", ":env:."):  # a later section overrides an earlier one
        found |= {key.removeprefix(section): value for key, value in lines if key.startswith(section)}
    known = {key: ast.literal_eval(value).split() for key, value in found.items() if key in VARIABLES}
    return ALIKE | {VARIABLES[key][0]: VARIABLES[key][1].join(values) for key, values in known.items()}


def attempt(*command: str, **variables: str) -> str | None:
    """Run a command; return None if it succeeds, otherwise its error in one line. The user's variables win."""
    done = subprocess.run(command, env=variables | os.environ, capture_output=True, text=True, check=False)
    return " ".join(done.stderr.split())[:300] if done.returncode else None


def install(python: Path, arguments: list[str]) -> int:
    """Install into the environment of `python`, and return the exit code."""
    uv = [found] if (found := shutil.which("uv")) else [str(python), "-m", "uv"]
    there = attempt(*uv, "--version") is None
    problem = None if there else attempt(str(python), *PIP_INSTALL, "uv")
    if problem is None:
        command = (*uv, "pip", "install", "--quiet", "--python", str(python), "-c", "constraints.txt", *arguments)
        listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
        settings = variables_for(listed.stdout)
        if sys.platform == "linux" and not any(map(os.path.exists, DRIVERS)):
            if attempt(*command, **settings, **WITHOUT_CUDA) is None:
                if [*python.parents[1].glob("lib/*/site-packages/torch-*+cpu.dist-info")]:
                    print("no GPU found: torch is installed without CUDA; UV_TORCH_BACKEND=cu126 installs it with CUDA")
                return 0
        problem = attempt(*command, **settings)
    if problem is None:
        return 0
    print(f"uv cannot install the packages ({problem}), so pip does, which takes a minute longer", flush=True)
    return subprocess.run([python, *PIP_INSTALL, *arguments], check=False).returncode


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    sys.exit(install(folder / "bin" / "python", sys.argv[2:]))
