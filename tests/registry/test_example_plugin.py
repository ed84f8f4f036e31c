"""The example plugin works as its README says, whether it is installed here or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.installing import install_beside

PLUGINS = Path(__file__).parents[2] / "plugins"
EXAMPLE = PLUGINS / "atat-zoo-example"


@pytest.fixture
def environment(tmp_path):
    """The environment of a process in which the plugin is installed: its folder and its metadata on the path."""
    # An editable installation of atat_zoo may itself be found through the path.
    path = os.pathsep.join([str(tmp_path), install_beside(EXAMPLE, tmp_path), str(PLUGINS.parent)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATAT_ZOO_", "PYTEST_"))}
    return kept | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def test_it_is_listed_without_torch(environment):
    code = "import sys; from atat_zoo import Zoo; print(Zoo.load().names('masking'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'rank'" in done.stdout
    assert done.stdout.strip().endswith("False")


@pytest.mark.slow
def test_its_own_tests_pass(environment):
    done = forked.run(["-q", "-p", "no:cacheprovider"], EXAMPLE, code=forked.PYTEST, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
