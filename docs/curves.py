"""SVG figures of components that are functions of one variable, computed from the components themselves."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import altair as alt
import torch
import vl_convert

from atat_zoo.diffusion.contracts import StatefulComponent
from atat_zoo.modeling.masking import StepwiseMasking, VisibleTextMasking
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.registry import Context
from atat_zoo.reports import PALETTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atat_zoo.registry import Zoo

Rows = list[dict[str, Any]]
# Placeholders for the colours of the page, which may be light or dark.
_INK, _GRID = "#010101", "#020202"
_WIDTH, _HEIGHT = 330, 200
_CONFIG = {
    "background": "transparent",
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK, "titleColor": _INK, "gridColor": _GRID, "domain": False, "ticks": False,
        "labelPadding": 6, "tickCount": 5, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
    },
    "axisY": {"titleAngle": 0, "titleAlign": "left", "titleBaseline": "bottom", "titleX": 0, "titleY": -10},
    "legend": {
        "orient": "bottom", "title": None, "columns": 3, "labelColor": _INK, "labelFontSize": 12, "labelLimit": 240,
        "symbolStrokeWidth": 2.5, "symbolSize": 200,
    },
}  # fmt: skip
_STEPS, _LENGTH = 1000, 33


def of(kind: str, zoo: Zoo) -> dict[str, str]:
    """Return the HTML figures of a kind's page, by component name; the key "" has the figure of the whole kind."""
    return dict(_FIGURES[kind](zoo)) if kind in _FIGURES else {}


def _noise(zoo: Zoo) -> Iterator[tuple[str, str]]:
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    lines = {name: 1 - part.alpha(t) for name, part in _parts(zoo, "noise")}
    yield "", _figure(lines, t, "time t", "mask rate, 1 − α(t)")


def _rates(zoo: Zoo) -> Iterator[tuple[str, str]]:
    u = (torch.arange(50_000, dtype=torch.float64) + 0.5) / 50_000
    middles, lines = (torch.arange(50) + 0.5) / 50, {}
    for name, part in _parts(zoo, "mask_rates"):
        if not isinstance(part, StatefulComponent):  # a distribution that follows the loss cannot be drawn without one
            rate = part.levels(u, LinearNoise(), 0.5).rate
            lines[name] = torch.histc(rate.float(), bins=50, min=0, max=1) / len(u) * 50
    yield "", _figure(lines, middles, "mask rate", "density")


def _masking(zoo: Zoo) -> Iterator[tuple[str, str]]:
    importance = torch.linspace(0, 1, 65)
    for name in zoo.names("masking"):
        part = zoo.spec("masking", name)
        # Only strategies that depend on importance alone: not those that also read positions, or the visible text.
        if not isinstance(part, VisibleTextMasking | StepwiseMasking) and not part.positional:
            lines = {
                f"rate {rate:g}": part.probabilities(
                    importance[None], torch.tensor([rate]), torch.ones(1, 65, dtype=torch.bool)
                )[0]
                for rate in (0.1, 0.3, 0.5, 0.7, 0.9)
            }
            yield name, _figure(lines, importance, "importance, evenly spaced over a text", "masking probability")


def _position_bias(zoo: Zoo) -> Iterator[tuple[str, str]]:
    parts = _parts(zoo, "position_bias")
    lines = {name: part.values(_LENGTH) for name, part in parts if not isinstance(part, StatefulComponent)}
    yield "", _figure(lines, torch.arange(_LENGTH), "position", "bias")


def _curriculum(zoo: Zoo) -> Iterator[tuple[str, str]]:
    progress = torch.linspace(0, 1, 501)
    lines = {}
    for movement in ("step", "linear", "exponential"):
        schedule = zoo.build("curriculum", {"use": "three_stage", "progress": movement}, _context())
        lines[movement] = torch.tensor([schedule.strength(float(at)) for at in progress])
    yield "three_stage", _figure(lines, progress, "training progress", "factor of I in the exponent")


def _uncertainty(zoo: Zoo) -> Iterator[tuple[str, str]]:
    p = torch.linspace(0, 1, 101)
    logits = torch.stack([p, 1 - p], -1).log()
    lines = {name: part(logits) for name, part in _parts(zoo, "uncertainty")}
    yield "", _figure(lines, p, "probability of the first of two tokens", "uncertainty")


def _schedule(zoo: Zoo) -> Iterator[tuple[str, str]]:
    lines = {}
    for name, part in _parts(zoo, "schedule"):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        schedule, shares = part.build(optimizer, _STEPS), []
        for _ in range(_STEPS):
            shares.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        lines[name] = torch.tensor(shares)[::5]
    yield "", _figure(lines, torch.arange(0, _STEPS, 5), f"step (of {_STEPS})", "learning rate as a share of its peak")


_FIGURES: dict[str, Callable[[Zoo], Iterator[tuple[str, str]]]] = {
    "noise": _noise,
    "mask_rates": _rates,
    "masking": _masking,
    "position_bias": _position_bias,
    "curriculum": _curriculum,
    "uncertainty": _uncertainty,
    "schedule": _schedule,
}


def _context() -> Context:
    return Context(vocabulary_size=8, length=_LENGTH, steps=_STEPS)


def _parts(zoo: Zoo, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield the components of a kind with default parameters, ready to use; schedules are built with an optimizer."""
    for name in zoo.names(kind):
        spec = zoo.spec(kind, name)
        yield name, spec.build(_context()) if hasattr(spec, "build") and kind != "schedule" else spec


def _figure(lines: dict[str, torch.Tensor], x: torch.Tensor, across: str, up: str) -> str:
    """Return an HTML figure with the lines over x as inline SVG, in the colours of the page."""
    rows: Rows = [
        {"line": name, "x": float(at), "y": float(value)}
        for name, values in lines.items()
        for at, value in zip(x, values, strict=True)
    ]
    colours = alt.Scale(domain=list(lines), range=list(PALETTE[: len(lines)]))
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("x:Q", title=across),
            y=alt.Y("y:Q", title=up),
            color=alt.Color("line:N", scale=colours),
            strokeDash=alt.StrokeDash("line:N", legend=None, sort=list(lines)),
        )
        .properties(width=_WIDTH, height=_HEIGHT, config=_CONFIG)
    )
    svg = vl_convert.vegalite_to_svg(chart.to_dict()).replace("\n", " ")
    svg = svg.replace(_INK, "currentColor").replace(_GRID, "var(--color-background-border)")
    said = f"{up} over {across}: {', '.join(lines)}"
    same = [f"{a} and {b}" for a, b in combinations(lines, 2) if torch.allclose(lines[a], lines[b], atol=2e-3)]
    caption = " ".join(["The curves use default parameters.", *(f"The lines of {pair} coincide." for pair in same)])
    return (
        f'<figure class="curves"><div role="img" aria-label="{said}">{svg}</div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )
