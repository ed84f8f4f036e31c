"""The plugins of this repository, each in an environment of its own: `python -m tests.plugin_environments [NAME]...`.

`make test-plugins`. The wheel of the zoo is installed alone, then one plugin with what it needs; its parts are held to
their contracts from the command line, and its own tests run. With `--borrow` the environments see the libraries of this
one, and install only what is missing.
"""

import sys
import tempfile
import tomllib
from pathlib import Path

from tests.empty_environment import ROOT, Environment


def main():
    words = sys.argv[1:]
    folders = {folder.name: folder for folder in sorted((ROOT / "plugins").glob("atat-zoo-*"))}
    names = [word for word in words if not word.startswith("-")] or list(folders)
    if unknown := set(names) - set(folders):
        sys.exit(f"there is no plugin {', '.join(sorted(unknown))}; there are {', '.join(folders)}")
    for folder in map(folders.__getitem__, names):
        with tempfile.TemporaryDirectory() as where:
            made = Environment(Path(where), "--borrow" in words)
            text = (folder / "pyproject.toml").read_text(encoding="utf-8")
            others = [str(other) for name, other in folders.items() if f'"{name}>' in text]
            made.install(f"{folder}[test]", *others, needs=True)
            points = tomllib.loads(text)["project"].get("entry-points", {})
            for command in points.get("atat_zoo.commands", {}):
                assert f"\n  {command} " in made.atat("--help"), command
                made.atat(command, "--help")
            if "atat_zoo" in points:  # or it has no parts
                print(made.atat("zoo", "check", folder.name).splitlines()[-1], flush=True)
            # From another folder: in its own, `tests` would be the package's for the server that forks.
            tested = made.run(made.python, "-m", "pytest", "-q", str(folder / "tests"), cwd=made.folder)
            print(f"{folder.name}: {tested.strip().splitlines()[-1]}", flush=True)
            made.run(made.python, "-m", "pip", "uninstall", "--quiet", "--yes", folder.name)
            # Of borrowed libraries it may be one that is still there.
            for command in () if made.borrow else points.get("atat_zoo.commands", {}):
                assert f"comes with the plugin {folder.name}; run `pip install" in made.atat(command, code=2), command


if __name__ == "__main__":
    main()
