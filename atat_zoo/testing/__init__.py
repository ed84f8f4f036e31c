"""The conformance suite, which tests the contract of each kind of component, built in or from a plugin.

The test file of a plugin looks like this:

    import pytest
    from atat_zoo.testing import cases

    @pytest.mark.parametrize("case", cases(distribution="atat-zoo-example"), ids=str)
    def test_conformance(case):
        case.run()

Each case runs one check of one component with its default parameters, and fails with a message that says what the
component must do. `case.run(examples=1000)` tries more batches if hypothesis draws them. If a component requires
parameters, files, or sizes different from a one-layer network and texts of six tokens, define `EXAMPLES` in the module
`examples` of your package: for each kind and name, a function that may write files to a folder and returns parameters.

    EXAMPLES = {("corpus", "mine"): lambda folder: {"path": written(folder)}}

To test different parameters, call the check of the kind, for example `check_masking(Spiral(loops=3))`.

A masking strategy may set two attributes: `direction` (default: +1), which is −1 if the probability p of
masking a token falls with its importance and 0 if p does not depend on importance; and `positional = True` if equal
importance at two positions may give different p. A strategy with a `temperature` is also tested at a very low and a
very high one. A strategy that reads the visible tokens has a `draw_mask` method and different checks.

The suite requires hypothesis (`pip install hypothesis`), but does not import pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from atat_zoo.testing.suites import SUITES

if TYPE_CHECKING:
    from atat_zoo.testing.component_examples import EXAMPLES
    from atat_zoo.testing.conformance import CHECKS, Case, cases, check_description, check_imports

__all__ = ["CHECKS", "EXAMPLES", "Case", "cases", "check_description", "check_imports"]
__all__ += [f"check_{what}" for what in sorted(SUITES)]


# Imported on first use, because some modules take seconds to import.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = SUITES.get(name.removeprefix("check_"), "component_examples" if name == "EXAMPLES" else "conformance")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
