"""`atat new` in an empty environment: `python -m tests.empty_environment [KIND]...` (`make test-new`).

The wheel of the zoo is built and installed alone. Then, of each kind, a package is written, installed, listed and
tested, which holds it to its contract; its experiment trains to a step at which it is stopped, and is continued; and
without the package `atat check` says what to install. With `--borrow` the environment sees the libraries of this one,
which takes seconds in place of minutes and gigabytes; the zoo itself is the wheel's all the same.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from atat_zoo.registry import KINDS

ROOT = Path(__file__).parents[1]
# In each folder: trains, presses Ctrl-C when step 10 is told, and continues.
TRAINED = """
import os, signal, sys
from pathlib import Path
from atat_zoo import experiment
from atat_zoo.training import trainer
class Told(trainer.Silent):
    def training(self, step, steps, line):
        if step == 10:
            os.kill(os.getpid(), signal.SIGINT)
for folder in sys.argv[1:]:
    os.chdir(folder)
    result = trainer.train(experiment.load("experiment.toml"), Path("run"), reporter=Told())
    assert not result.finished and result.step < 20, (folder, result.step)
    result = trainer.resume(Path("run"))
    assert result.finished and result.step == 20, (folder, result.step)
    print(Path(folder).name, "trained and continued", flush=True)
"""


class Environment:
    """A virtual environment, and a folder for what is done in it."""

    def __init__(self, folder, borrow):
        self.folder, self.python, self.borrow = folder, str(folder / "env" / "bin" / "python"), borrow
        self.run(sys.executable, "-m", "venv", str(folder / "env"))
        dist = folder / "dist"
        self.run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT))
        if borrow:
            # Only the folder itself: what its own .pth files name, such as this checkout, stays out.
            site = self.run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
            (Path(site) / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
        (wheel,) = dist.glob("*.whl")
        self.install(f"{wheel}" if borrow else f"{wheel}[test]")
        where = self.run(self.python, "-c", "import atat_zoo; print(atat_zoo.__file__)")
        assert where.startswith(str(folder)), where

    def run(self, *words, cwd=None, code=0, only=False):
        """Run a command to its end, and return what it prints; with `only`, on standard output."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ATAT_", "PYTEST_"))}
        env |= {"OMP_NUM_THREADS": "1", "WDS_SECURE": "1"}
        done = subprocess.run(
            words, cwd=cwd or self.folder, env=env, capture_output=True, text=True, check=False, timeout=3600
        )
        assert done.returncode == code, f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + ("" if only else done.stderr)

    def install(self, *what, needs=False):
        """Install with pip: where libraries are borrowed, what is needed only if `needs` says so."""
        flags = ["--no-build-isolation", "--no-deps"] if self.borrow and not needs else []
        flags += ["--quiet", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
        self.run(self.python, "-m", "pip", "install", *flags, *what)

    def atat(self, *words, **how):
        return self.run(str(Path(self.python).with_name("atat")), *words, **how)

    def check(self, kinds):
        """Take a package of each kind through its life, one stage after another."""
        begun = time.monotonic()

        def done(stage):
            print(f"{time.monotonic() - begun:4.0f} s: {stage}", flush=True)

        parts = {kind: f"my-{kind.replace('_', '-')}" for kind in kinds}
        packages = {kind: self.folder / f"atat-zoo-{part}" for kind, part in parts.items()}
        folders = list(map(str, packages.values()))
        for kind, part in parts.items():
            self.atat("new", kind, part)
        self.install(*(folder if self.borrow else f"{folder}[test]" for folder in folders))
        done(f"{len(kinds)} packages are written and installed")
        listed = [(p["kind"], p["distribution"]) for p in json.loads(self.atat("zoo", "list", "--json", only=True))]
        assert {(kind, package.name) for kind, package in packages.items()} <= set(listed)
        tested = self.run(self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders)
        done(f"they are listed, and keep their contracts: {tested.splitlines()[-1]}")
        for package in packages.values():
            self.atat("check", "experiment.toml", cwd=package)
        self.run(self.python, "-W", "ignore", "-c", TRAINED, *folders)
        done("their experiments train 20 steps, stopped at 10 and continued")
        self.run(self.python, "-m", "pip", "uninstall", "--quiet", "--yes", *(p.name for p in packages.values()))
        for package in packages.values():
            said = self.atat("check", "experiment.toml", cwd=package, code=2)
            assert f"{package.name} is not installed; run `pip install {package.name}`" in said, said
        done("they are uninstalled, and missed by name")


def main():
    words = sys.argv[1:]
    kinds = [word for word in words if not word.startswith("-")] or list(KINDS)
    with tempfile.TemporaryDirectory() as folder:
        Environment(Path(folder), "--borrow" in words).check(kinds)


if __name__ == "__main__":
    main()
