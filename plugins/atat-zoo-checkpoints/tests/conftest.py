"""What the tests of atat-zoo share is used here, too."""

import sys
from pathlib import Path

# The checkout comes last, so that an installed atat_zoo is tested, and not the one beside these tests.
sys.path.append(str(next(path for path in Path(__file__).parents if (path / "tests" / "__init__.py").exists())))

from tests.conftest import atat, pytest_configure, pytest_runtest_setup

__all__ = ["atat", "pytest_configure", "pytest_runtest_setup"]
