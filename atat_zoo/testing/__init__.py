"""The conformance suite tests the contract of each kind of component, for built-in components and those of plugins.

The test file of a plugin:

    import pytest
    from atat_zoo.testing import cases

    @pytest.mark.parametrize("case", cases(distribution="atat-zoo-example"), ids=str)
    def test_conformance(case):
        case.run()

Each case runs one check of one component with its default parameters, and fails with a message that names the check;
`case.run(examples=1000)` tries more batches where hypothesis draws them. If a component needs parameters, files, or
sizes other than a network of one layer and texts of six tokens, give an example in the module `examples` of your
package: a function, by kind and name, that may write files into a folder and returns the parameters.

    EXAMPLES = {("corpus", "mine"): lambda folder: {"path": written(folder)}}

For other parameters, call the check of the kind: `check_masking(Spiral(loops=3))`.

A masking strategy may set two attributes: `direction = -1` if p falls with importance, or 0 if p does not depend on it
(default: +1); and `positional = True` if equal importance at two positions may give different p. The limits of a
`temperature` are tested. A strategy that reads the visible tokens has the method `draw_mask` and other checks.

Needs hypothesis (`pip install hypothesis`); pytest is not imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from atat_zoo.testing.suites import SUITES

if TYPE_CHECKING:
    from atat_zoo.testing.component_examples import EXAMPLES
    from atat_zoo.testing.conformance import CHECKS, Case, cases, check_description, check_imports

__all__ = ["CHECKS", "EXAMPLES", "Case", "cases", "check_description", "check_imports"]
__all__ += [f"check_{what}" for what in sorted(SUITES)]


# Imported on first use: some of them import what takes seconds.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = SUITES.get(name.removeprefix("check_"), "component_examples" if name == "EXAMPLES" else "conformance")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
