"""The commands `bench`, `distill` and `index`: long jobs that report how far they are.

Owns: their options, progress and last words in a terminal. Must not know how the jobs work.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.cli.files import OutputFile
from specviz.cli.options import Options
from specviz.cli.paint import one_line
from specviz.cli.status import Status
from specviz.cli.summary import UNKNOWN
from specviz.config import CORPUS_SUFFIX
from specviz.errors import ConfigError

if TYPE_CHECKING:
    from specviz.distill import Report

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 48


def bench(options: Options) -> int:
    """Measure, print the table, keep it and the JSON."""
    if options.by_category:
        return _bench_by_category(options)
    if options.trees or options.retrieval:
        return _bench_tables(options)
    out = OutputFile(options.out, "--out") if options.out is not None else None
    table_file = OutputFile(options.table, "--table") if options.table is not None else None
    from specviz.bench import choose, format_report, measure  # late: it imports torch

    sections = choose(options.section)

    with _showing() as status:
        report = measure(quick=options.quick, say=status.show, sections=sections)
    table = format_report(report)
    print(table)
    kept = [_keep(table + "\n", table_file)] if table_file else []
    if out:
        kept.append(_keep(json.dumps(report, indent=1, allow_nan=False) + "\n", out))
    return max(kept, default=0)


def _keep(text: str, out: OutputFile) -> int:
    """Write results; 1 where that failed, which is said."""
    try:
        out.write(text)
    except OSError as error:
        print(f"specviz: The results could not be written to {out.name!r}: {error.strerror}.", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _showing() -> Iterator[Status]:
    """A line of progress that is gone when the job is over, however it ends."""
    status = Status(sys.stderr)
    try:
        yield status
    finally:
        status.clear()


def _chosen(options: Options) -> tuple[Any, Path]:
    """(the bench with the drafts that were named, the folder of its results)."""
    from specviz.bench import Bench
    from specviz.models import catalog

    named = {"drafts": options.drafts} if hasattr(options, "drafts") else {}
    folder = Path(options.out) if options.out is not None else catalog.ASSETS / "results"
    return Bench(quick=options.quick, **named), folder


def _bench_tables(options: Options) -> int:
    """Chains against trees, or copying; the bench keeps its results as it goes."""
    from specviz.bench import format_retrieval, format_trees, measure_retrieval, measure_trees

    measure, told = (measure_trees, format_trees) if options.trees else (measure_retrieval, format_retrieval)
    bench, folder = _chosen(options)
    with _showing() as status:
        report = measure(bench, folder, say=status.show)
    print(told(report), end="")
    return 0


def _bench_by_category(options: Options) -> int:
    """Race the drafts over the bundled prompts; the results are kept after every prompt."""
    from specviz.bench import format_categories, measure_categories

    bench, folder = _chosen(options)
    limit = options.limit_per_category
    try:
        with _showing() as status:
            report = measure_categories(bench, folder, limit_per_category=limit, say=status.show)
    except KeyboardInterrupt:
        print(
            f"specviz: interrupted; what is measured is in {folder}, and the same command goes on.",
            file=sys.stderr,
        )
        return 130
    print(format_categories(report), end="")
    return 0


def distill(options: Options) -> int:
    """Train a draft and say where it is."""
    from specviz.distill import DistillSettings
    from specviz.distill import distill as train
    from specviz.models import default_target

    given = {name: getattr(options, name) for name in ("minutes", "data_tokens", "seed") if hasattr(options, name)}
    settings = DistillSettings(
        target=getattr(options, "target", "") or default_target(),
        out=Path(options.out),
        kind=options.kind,
        after=tuple(options.after),
        start=options.start,
        prompts=Path(options.prompts) if options.prompts else None,
        **given,
    )
    progress = _Progress(Status(sys.stderr))
    try:
        result = train(settings, progress=progress)
    except KeyboardInterrupt:
        progress.status.clear()
        print("specviz: interrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    progress.status.clear()
    measured = result.agreement
    rate = f"{measured.rate:.1%}" if measured.num_positions else UNKNOWN
    print(f"{result.out}: agrees with the target on {rate} of tokens it never saw; see its README.md.")
    if len(result.course) > 1:
        print(course_in_bars(result.course))
    return 0


def course_in_bars(course: Sequence[tuple[int, float]]) -> str:
    """How agreement went, (tokens seen, agreement) from first to last, in bars from the least to the most."""
    num = min(len(course), _MOST_BARS)
    shown = [course[(i + 1) * len(course) // num - 1][1] for i in range(num)]
    least, most = min(shown), max(shown)
    bars = "".join(_BARS[round((rate - least) / ((most - least) or 1) * (len(_BARS) - 1))] for rate in shown)
    return (
        f"agreement while it learned, {least:.1%} to {most:.1%}: {bars} {course[-1][1]:.1%} after "
        f"{course[-1][0]:,} tokens seen"
    )


def index(options: Options) -> int:
    """Make a corpus and say what is in it, and what is not."""
    if not options.out.endswith(CORPUS_SUFFIX):
        raise ConfigError(f"--out {options.out!r} must end in {CORPUS_SUFFIX}, so that --draft knows what it is.")
    OutputFile(options.out, "--out")
    from specviz import models  # late: it imports torch
    from specviz.drafts.retrieval import corpus

    with _showing() as status:
        tokenizer = models.load_tokenizer(options.target or models.default_target())
        built = corpus.build(options.folder, options.out, tokenizer, status.update)
    for complaint in built.complaints:
        print(one_line(f"specviz: {complaint}"), file=sys.stderr)
    sizes = ((built.num_texts, "text"), (built.num_tokens, "token"))
    seconds = f"{built.tokenize_s:.1f} s for reading, {built.index_s:.1f} s for sorting"
    texts, tokens = (f"{n:,} {what}{'s' * (n != 1)}" for n, what in sizes)
    print(one_line(f"{options.out}: {texts}, {tokens}; {seconds}."))
    return 0


class _Progress:
    """Reports come after every pass: a new stage is shown at once, the rest now and then."""

    def __init__(self, status: Status) -> None:
        self.status = status
        self._stage = ""

    def __call__(self, report: Report) -> None:
        left = f", {report.left_s / 60:.0f} min left" if report.left_s is not None else ""
        agreement = f", agreement {report.agreement:.3f}" if report.agreement is not None else ""
        sentence = f"{report.stage}: {report.message}{agreement}{left}"
        show = self.status.update if report.stage == self._stage else self.status.show
        self._stage = report.stage
        show(sentence, report.fraction)
