"""Plugins made up for a test: a module and a `dist-info` folder on `sys.path`."""

import sys
import textwrap
import tomllib

import pytest

from atat_zoo.registry import plugins
from atat_zoo.registry import zoo as zoo_module

GOOD = '''
from atat_zoo.registry import component, hookimpl, param

@component
class Spiral:
    """A masking strategy that cares little for importance."""
    name, summary, refs = "spiral", "made up", ()
    power: float = param(0.5, help="how much importance counts", gt=0)

    def probabilities(self, importance, rate, maskable):
        import torch
        from atat_zoo.diffusion.calibration import water_fill
        return water_fill(importance.double() * self.power, rate, maskable)

@hookimpl
def atat_zoo_masking():
    return [Spiral]
'''
# A backbone that reads models of the form "small", which are the weights of `dit`; {name} is its name.
READER = '''
    from atat_zoo.modeling.backbones.dit import DiTBackbone
    from atat_zoo.registry import component, hookimpl

    CONTRACT = 2


    @component
    class {name}(DiTBackbone):
        """A dit that reads models."""

        name = "{name}"
        summary = "reads models"
        refs = ()

        @classmethod
        def reads(cls, config):
            return config.get("model_type") == "small"

        @classmethod
        def import_table(cls, published, said):
            own = {{"use": cls.name, "layers": published.config["layers"], "width": 16, "heads": 2}}
            table = {{"backbone": own, "tokenizer": "bytes", "objective": "mdlm", "noise": "cosine"}}
            return table | {{"data": {{"length": 16}}}}

        def imported(self, module, published):
            from atat_zoo_checkpoints.model_import import fill

            fill(dict(module.backbone.named_parameters()), {{}}, published)
            return self


    @hookimpl
    def atat_zoo_backbone():
        return [{name}]
'''


def good(part):
    """Return a plugin with a masking strategy of this name."""
    return GOOD.replace("spiral", part).replace("Spiral", part.capitalize())


def described(folder, distribution, version, points):
    """Write the folder by which a distribution is known as installed, and return it."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(points)
    return info


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
        info = described(tmp_path, f"atat-zoo-{name}", "1.2", entry_points or f"[atat_zoo]\n{name} = {module}\n")
        if not metadata:
            (info / "METADATA").unlink()
        return module

    return install


def install_beside(package, folder):
    """Make a package that was written importable, and known as installed, to who has both folders on the path."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    points = "".join(f"{name} = {module}\n" for name, module in project["entry-points"]["atat_zoo"].items())
    described(folder, project["name"], "0.1.0", f"[atat_zoo]\n{points}")
    return str(package)
