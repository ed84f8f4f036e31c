"""The style of figures for a paper: as wide as a column, letters that are readable there. Imports no matplotlib.

The colours are the `PALETTE` of the report, on a white ground; the same numbers give the same file.
"""

from typing import Any

WIDTH = 3.3  # inches: a column of a paper with two
STYLE: Any = {
    **{"font.family": "sans-serif", "font.size": 7, "axes.labelsize": 7, "axes.titlesize": 7, "figure.labelsize": 7},
    **{"xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "legend.fontsize": 6.5},
    **{"legend.frameon": False, "legend.handlelength": 1.4, "lines.linewidth": 1.2, "lines.markersize": 3.5},
    **{"axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6},
    **{"axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False},
    **{"axes.grid.axis": "both", "grid.linewidth": 0.3, "grid.color": "#cccccc", "axes.axisbelow": True},
    # Text stays text, and what is drawn alike is written alike.
    **{"svg.fonttype": "none", "svg.hashsalt": "atat_zoo", "pdf.fonttype": 42, "figure.constrained_layout.use": True},
}
