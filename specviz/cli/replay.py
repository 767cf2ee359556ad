"""The command `replay`: a kept trace as the run that it was, and whether it holds water.

Owns: showing a trace from a file that may come from anywhere. Must not know models; it imports none.
"""

from __future__ import annotations

import sys

from specviz.cli.files import read_trace
from specviz.cli.options import Options
from specviz.cli.paint import Painter, Style, one_line, safe
from specviz.cli.summary import header, main_lane, table
from specviz.metrics import audit
from specviz.trace import Step, Trace

DOES_NOT_CHECK_OUT = 1
_MAX_FAULTS_SHOWN = 20
_MAX_PROMPT_SHOWN = 600


def replay(options: Options) -> int:
    """Show a trace, its numbers, and the recheck of every decision in it."""
    trace = read_trace(options.file)
    lane, style = main_lane(trace), Style.of(sys.stdout)
    started = trace.started(lane)
    if started:
        print(header(started, trace.config), end="\n\n")
    print(_prompt(trace), end="\n\n")
    painter = Painter(style, trace.pieces.__getitem__)
    for event in trace.events:
        if isinstance(event, Step) and event.lane == lane:
            print(painter.step(event), end="")
    print(painter.end(), style.legend(), table(trace), sep="\n\n", end="\n\n")
    faults = audit(trace)
    print(_verdict(trace, faults))
    return DOES_NOT_CHECK_OUT if faults else 0


def _prompt(trace: Trace) -> str:
    prompt = str(trace.config.get("prompt", ""))
    more = "…" if len(prompt) > _MAX_PROMPT_SHOWN else ""
    return f"prompt: {safe(prompt[:_MAX_PROMPT_SHOWN])}{more}"


def _verdict(trace: Trace, faults: list[str]) -> str:
    steps = [event for event in trace.events if isinstance(event, Step)]
    num_trials = sum(len(site.trials) for step in steps for site in step.sites)
    num_draws = sum(step.final is not None for step in steps)
    seen = f"{num_trials:,} accepts and rejects and {num_draws:,} draws rechecked from the file alone"
    if not faults:
        return f"{seen}: every accept, reject and draw checks out."
    shown = [f"  {one_line(fault)[:400]}" for fault in faults[:_MAX_FAULTS_SHOWN]]
    more = [f"  and {len(faults) - len(shown):,} more"] if len(faults) > len(shown) else []
    return "\n".join([f"{seen}; {len(faults):,} things do not check out:", *shown, *more])
