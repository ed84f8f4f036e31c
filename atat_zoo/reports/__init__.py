"""The HTML report: one self-contained page about run folders or a study.

`report_data` and `study_data` load recorded results without torch; `charts` has one function per chart, which converts
data to Vega-Lite; `html_report` returns the page. The page shows only numbers that a command printed or recorded.
"""

import resource
from importlib.util import find_spec

from atat_zoo.system.errors import UserError

PAGE = ("altair", "vl_convert")  # packages that a page needs
# Colours for the colour-blind, legible on white and on black (Okabe and Ito, 2008, without the yellow).
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b7608f", "#c98a00", "#3d9bd1", "#7a68b8", "#808080")
ADDRESSES = 1 << 36  # bytes that the engine in vl_convert reserves; if it cannot, it ends the process


def require(command: str, *packages: str) -> None:
    """Raise `UserError` if a package that `command` needs is not installed, or lacks virtual memory to start."""
    for package in packages:
        if find_spec(package) is None:
            raise UserError(f"{command} needs the package {package}; install it with `pip install 'atat-zoo[report]'`")
    room = resource.getrlimit(resource.RLIMIT_AS)[0]
    if "vl_convert" in packages and resource.RLIM_INFINITY != room < ADDRESSES:
        raise UserError(
            f"{command} needs {ADDRESSES >> 30} GiB of virtual memory, and the limit is {room >> 30} GiB; raise "
            "the limit with `ulimit -v unlimited`"
        )
