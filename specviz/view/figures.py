"""The plots, as Plotly JSON without data.

Owns: which plots there are, their titles, axes and what each trace shows. Data is filled in by the browser
from the running numbers (`meta.source` and `meta.y` name them), so that scrubbing needs no server. Colours
are roles (`meta.role`), so that they follow the theme. Must not know gradio or the engine.
"""

from __future__ import annotations

from typing import Any

HEIGHT = 210
LANE_NAMES = {"speculative": "with draft", "baseline": "target alone"}


def trace(kind: str, name: str, source: str, y: str, role: str, **more: Any) -> dict[str, Any]:
    """A trace without points; `lane` in `more` goes to its `meta`."""
    meta = {"source": source, "y": y, "role": role}
    meta |= {"lane": more.pop("lane")} if "lane" in more else {}
    return {"type": kind, "name": name, "meta": meta, "x": [], "y": [], **more}


def line(name: str, lane: str, y: str, role: str, *, width: float = 2.0, **more: Any) -> dict[str, Any]:
    """A line over lane time, one point a pass."""
    style = {"width": width}
    return trace("scatter", name, "steps", y, role, mode="lines", line=style, lane=lane, **more)


def layout(x_title: str, y_title: str, **more: Any) -> dict[str, Any]:
    """The plain frame that all plots share; `xaxis` and `yaxis` in `more` add to it."""
    axis = {
        "showline": False,
        "zeroline": False,
        "title": {"standoff": 6, "font": {"size": 11}},
        "automargin": True,
    }
    x_axis = {**axis, "showgrid": False, **more.pop("xaxis", {})}
    y_axis = {**axis, "showgrid": True, "rangemode": "tozero", **more.pop("yaxis", {})}
    x_axis["title"] = {**x_axis["title"], "text": x_title}
    y_axis["title"] = {**y_axis["title"], "text": y_title}
    return {
        "height": HEIGHT,
        "margin": {"l": 44, "r": 10, "t": 8, "b": 36},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11},
        "showlegend": False,
        "hovermode": "closest",
        "xaxis": x_axis,
        "yaxis": y_axis,
        **more,
    }


def reference(value: float) -> dict[str, Any]:
    """A dotted line across the plot at the height `value`."""
    line_style = {"dash": "dot", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value, "line": line_style}


LEGEND = {
    "showlegend": True,
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
}
GROW = {"meta": "grow"}


def figures() -> list[dict[str, Any]]:
    """All plots in the order of the page: key, title, what it shows, height, and the Plotly figure."""
    return [_race(), _speedup(), _acceptance(), _lengths(), _positions(), _split(), _theory()]


def _figure(key: str, title: str, what: str, data: list[dict[str, Any]], frame: dict[str, Any]) -> dict[str, Any]:
    return {
        "key": key,
        "title": title,
        "what": what,
        "height": HEIGHT,
        "figure": {"data": data, "layout": frame},
    }


def _race() -> dict[str, Any]:
    data = [line(name, lane, "tokens", lane) for lane, name in LANE_NAMES.items()]
    frame = layout("lane time, s", "tokens", xaxis=GROW, yaxis=GROW, **LEGEND)
    return _figure("race", "The race", "tokens of each lane at equal lane time", data, frame)


def _speedup() -> dict[str, Any]:
    data = [line("speedup", "race", "speedup", "speculative")]
    frame = layout("lane time, s", "×", xaxis=GROW, yaxis=GROW, shapes=[reference(1.0)])
    return _figure("speedup", "Measured speedup", "so far; the dotted line is the target alone", data, frame)


def _acceptance() -> dict[str, Any]:
    data = [
        line("whole run", "speculative", "acceptance_rate", "speculative", width=2.4),
        line("last 16 passes", "speculative", "rolling_rate", "rolling", width=1.4),
    ]
    frame = layout("lane time, s", "", xaxis=GROW, yaxis={"range": [0, 1.03], "tickformat": ".0%"}, **LEGEND)
    return _figure("acceptance", "Acceptance rate α", "accepted ÷ tested", data, frame)


def _lengths() -> dict[str, Any]:
    data = [trace("bar", "passes", "histogram", "passes", "accepted")]
    frame = layout("accepted tokens in a pass", "passes", xaxis={"dtick": 1}, bargap=0.25)
    return _figure("lengths", "Accepted length", "how many drafted tokens a pass kept", data, frame)


def _positions() -> dict[str, Any]:
    data = [trace("bar", "kept", "positions", "share", "accepted")]
    y_axis = {"range": [0, 1.03], "tickformat": ".0%"}
    frame = layout("position in the draft", "", xaxis={"dtick": 1}, yaxis=y_axis, bargap=0.25)
    return _figure(
        "positions", "Acceptance by position", "of all drafting passes, the share kept there", data, frame
    )


def _split() -> dict[str, Any]:
    parts = {"draft_s": ("draft", "draft"), "verify_s": ("target pass", "verify"), "rest_s": ("rest", "rest")}
    data = [trace("bar", name, "split", y, role, orientation="h") for y, (name, role) in parts.items()]
    y_axis = {"showgrid": False, "rangemode": "normal", "type": "category"}
    frame = layout(
        "ms per token", "", xaxis={"showgrid": True}, yaxis=y_axis, barmode="stack", bargap=0.35, **LEGEND
    )
    return _figure("split", "Where the time goes", "per token, by lane", data, frame)


def _theory() -> dict[str, Any]:
    data = [
        trace("scatter", "theory", "theory", "curve", "speculative", mode="lines+markers"),
        trace(
            "scatter",
            "this run",
            "theory",
            "now",
            "corrected",
            mode="markers",
            marker={"size": 11, "symbol": "diamond"},
        ),
    ]
    frame = layout(
        "draft length γ", "×", xaxis={"dtick": 4, "rangemode": "tozero"}, shapes=[reference(1.0)], **LEGEND
    )
    what = "what this run's acceptance, c and v promise at each length"
    return _figure("theory", "Speedup in theory", what, data, frame)
