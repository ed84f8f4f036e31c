"""Plugins made up for a test: a module and a `dist-info` folder on `sys.path`."""

import sys
import textwrap

import pytest

from atat_zoo.registry import plugins
from atat_zoo.registry import zoo as zoo_module


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No other plugin, no memory of earlier zoos, and the made-up modules forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.delenv(plugins.ALLOWED, raising=False)
    monkeypatch.delenv(plugins.STRICT, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    real = plugins.distributions
    monkeypatch.setattr(plugins, "distributions", lambda: real(path=[str(tmp_path)]))
    zoo_module._load.cache_clear()
    yield
    zoo_module._load.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("made_up"):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path, alone):
    """Return a function that installs a distribution with one plugin."""

    def install(name, source, *, module=None, entry_points=None, metadata=True, files=()):
        module = module or f"made_up_{name}"
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text(textwrap.dedent(source))
        for file, text in dict(files).items():
            (tmp_path / module / file).write_text(textwrap.dedent(text))
        info = tmp_path / f"atat_zoo_{name}-1.2.dist-info"
        info.mkdir()
        if metadata:
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: atat-zoo-{name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(entry_points or f"[atat_zoo]\n{name} = {module}\n")
        return module

    return install
