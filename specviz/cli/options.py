"""The arguments of every command, and the settings of a run that follow from them.

Owns: names, help texts, and reading arguments. Must not know what is legal: a number that cannot be read is
handed on as it was typed, and `RunConfig` names it with its legal range.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

import specviz
from specviz.cli.files import read_prompt
from specviz.config import (
    COPY_SOURCES,
    DTYPES,
    MAX_DRAFT_LEN,
    MAX_REFERENCES,
    MAX_TREE_NODES,
    NUMERICS,
    RunConfig,
)
from specviz.errors import ConfigError

Options = argparse.Namespace
_SETTINGS = {field.name for field in dataclasses.fields(RunConfig)}
_DEFAULTS = RunConfig()


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The arguments as one namespace; settings that were not given are not in it.

    Raises:
        ConfigError: an unknown command or option, or a value missing; one sentence.
    """
    return _parser().parse_args(arguments)


def run_config(options: Options) -> RunConfig:
    """The settings of a run, the prompt read from its file where one was named.

    Raises:
        ConfigError: a value out of range, or a prompt file that cannot be read.
    """
    given = {name: value for name, value in vars(options).items() if name in _SETTINGS}
    if options.prompt_file is not None:
        given["prompt"] = read_prompt(options.prompt_file)
    given["references"] = [*given.get("references", ()), *given.get("prompt_references", ())]
    for name in ("drafts", "stop", "references", "prompt_references", "copy_sources"):
        if name in given:
            given[name] = tuple(dict.fromkeys(given[name]) if name == "references" else given[name])
    return RunConfig(**given)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument as one of our errors, without the usage text in front."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see: {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m specviz",
        description="See speculative decoding: a small draft proposes tokens, the target model checks them in one "
        "pass, and the output stays exactly the target's. Every token is shown with its fate.",
    )
    parser.add_argument("--version", action="version", version=f"specviz {specviz.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    _add_run(commands.add_parser("run", help="decode a prompt with a draft, beside plain decoding"))
    _add_replay(commands.add_parser("replay", help="show a recorded run; needs no model"))
    _add_models(commands.add_parser("models", help="list the targets and drafts that can be named"))
    _add_index(commands.add_parser("index", help="make a folder of texts a corpus to copy from"))
    _add_bench(commands.add_parser("bench", help="measure speeds and overheads on this machine"))
    _add_distill(commands.add_parser("distill", help="train a small draft on what a target writes"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Decode a prompt twice in one race: with a draft and, as the baseline, without. Tokens are accepted (✓), "
        "rejected (✗), corrected by the target (→), or the target's bonus after a fully accepted draft (+)."
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", default=argparse.SUPPRESS, help="what the model is asked")
    prompt.add_argument(
        "--prompt-file", metavar="FILE", help="read the prompt from a UTF-8 file; one final line end is dropped"
    )
    _add_models_of_run(parser)
    _add_copying(parser)
    _add_sampling(parser)
    _add_lengths(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--trace", metavar="FILE", help="keep the run as a trace, to replay or to publish")
    output.add_argument(
        "--include-references", action="store_true",
        help="keep the whole references in the trace, not only what was copied from them",
    )  # fmt: skip
    output.add_argument("--json", action="store_true", help="print one JSON object instead of tokens and table")


def _setting(group: Any, option: str, what: str, **how: Any) -> None:
    """One setting of `RunConfig`; absent from the namespace where it is not given."""
    group.add_argument(option, default=argparse.SUPPRESS, help=what, **how)


def _add_models_of_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    names = "a catalog name (see: models), Hub id, folder or .gguf file"
    _setting(group, "--target", f"the model whose text you get (default: the embedded one): {names}", metavar="T")
    _setting(
        group, "--draft", "who proposes tokens (default: what suits the target, as the first line of a run says): "
        f"{names}, none, lookup (copies from prompt and answer), references, "
        "a corpus file (see: index), mix:FOLDER (counts of your own, see: distill --kind ngram), or cascade:A,B "
        "(A, and B where A has nothing to say); given again, several drafts share one token tree",
        metavar="D", dest="drafts", action="append",
    )  # fmt: skip
    _setting(
        group, "--draft-len", f"draft length γ: tokens that a model drafts per pass, 1 to {MAX_DRAFT_LEN}, or "
        "auto (default: what suits the draft); copies have a length of their own",
        metavar="N|auto", type=_whole,
    )  # fmt: skip
    _setting(
        group, "--tree", "draft a tree instead of a chain: children per level, as in 3,2,1,1, or auto[:N], which "
        f"grows where it pays, up to N nodes (at most {MAX_TREE_NODES} a pass)", metavar="TREE",
    )  # fmt: skip
    _setting(
        group, "--rule", "how drafts are checked: standard, or naive (for teaching: draw the target's token, see "
        "whether the tree holds it; the same law, fewer accepted)", metavar="RULE",
    )  # fmt: skip
    _setting(group, "--no-baseline", "do not run plain decoding beside it", dest="baseline", action="store_false")
    _setting(group, "--dtype", f"number format of weights: {', '.join(DTYPES)}", metavar="D")
    _setting(group, "--device", "auto, cpu, cuda or cuda:N", metavar="D")
    _setting(
        group, "--numerics", f"{' or '.join(NUMERICS)}: whether a block of tokens must give the same bits as "
        "single tokens (CPU, bfloat16), or may differ by rounding", metavar="N",
    )  # fmt: skip


def _add_copying(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("copying (the drafts references, lookup and corpus files)")
    kinds = "txt, md, html, pdf or source code"
    _setting(
        group, "--reference", f"a text to copy from: {kinds}; up to {MAX_REFERENCES}", metavar="FILE",
        dest="references", action="append",
    )  # fmt: skip
    _setting(
        group, "--prompt-reference", "the same, and the text stands before the prompt, too", metavar="FILE",
        dest="prompt_references", action="append",
    )  # fmt: skip
    _setting(
        group, "--min-match", f"tokens that must agree before a copy (default {_DEFAULTS.min_match})",
        metavar="N", type=_whole,
    )  # fmt: skip
    _setting(
        group, "--copy-len", f"tokens that are copied per pass, 1 to {MAX_DRAFT_LEN}, or auto: more behind copies "
        "that were accepted, fewer behind others (the default)", metavar="N|auto", type=_whole,
    )  # fmt: skip
    _setting(
        group, "--copy-from", f"copy from nothing else than {', '.join(COPY_SOURCES)}; may be given again",
        metavar="S", dest="copy_sources", action="append",
    )  # fmt: skip


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling (applies to the target, the drafts and the baseline alike)")
    _setting(group, "--temperature", "0 is greedy, the default; higher is more random", metavar="X", type=_number)
    _setting(group, "--top-k", "sample from the N most probable tokens; 0 is off", metavar="N", type=_whole)
    _setting(group, "--top-p", "sample from the most probable mass X; 1 is off", metavar="X", type=_number)
    _setting(
        group, "--repetition-penalty", "above 1, tokens seen before become less probable",
        metavar="X", type=_number,
    )  # fmt: skip
    _setting(group, "--seed", "repeat the same random draws; without it a seed is drawn", metavar="N", type=_whole)
    _setting(group, "--raw", "give the prompt as it is, not in the model's chat template", action="store_true")


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where to stop")
    _setting(
        group, "--max-new-tokens", f"at most N tokens (default {_DEFAULTS.max_new_tokens})",
        metavar="N", type=_whole,
    )  # fmt: skip
    _setting(group, "--min-new-tokens", "no end of text before N tokens", metavar="N", type=_whole)
    _setting(group, "--stop", "end after the token that completes S; may be given again",
             metavar="S", action="append")  # fmt: skip
    _setting(group, "--ignore-eos", "do not end at the model's end-of-text token", action="store_true")


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a trace that `run --trace` or the page has kept, with its numbers, and recheck every accept, "
        "reject and draw from the file alone. Needs no model."
    )
    parser.add_argument("file", metavar="FILE", help="a trace")


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the targets and drafts of the catalog, and whether each is ready to run."
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_index(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read every text file below a folder, whatever its ending (of PDF and HTML the text; hidden files and "
        "links left out), and write one file that drafts can copy from: run --draft corpus.sv. It belongs to the "
        "target's tokenizer."
    )
    parser.add_argument("folder", metavar="FOLDER", help="where the texts are")
    parser.add_argument("--out", metavar="FILE", required=True, help="the corpus; its name ends in .sv")
    parser.add_argument("--target", metavar="T", default="", help="the model whose tokens the texts become")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure this machine: bookkeeping per step, plain decoding against transformers, exact against fast "
        "numerics, pass times, what each draft gains, and copying. Medians with ranges; run it on a quiet machine."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer and shorter runs, under two minutes")
    add("--out", metavar="FILE", help="keep the results as JSON; with --by-category, --trees or --retrieval a "
        "folder (assets/results)")  # fmt: skip
    add("--table", metavar="FILE", help="keep the table as text")
    one = parser.add_mutually_exclusive_group().add_argument
    one("--section", metavar="S", action="append", help="only this section; may be given again")
    one("--trees", action="store_true", help="chains, trees, several drafts and both rules in turn, at "
        "temperatures 0 and 1; at most six minutes")  # fmt: skip
    one("--retrieval", action="store_true", help="copying over the bundled references, in turn with plain "
        "decoding and the prompt lookup of transformers, and the search for copies; some six minutes")  # fmt: skip
    one("--by-category", action="store_true", help="race drafts over the bundled prompts, at temperatures "
        "0 and 1; some 15 minutes a draft; killed and started again, it goes on")  # fmt: skip
    add("--drafts", metavar="A,B", type=_names, default=argparse.SUPPRESS, help="with --by-category: which "
        "drafts; with --trees: the first of them that grows trees")  # fmt: skip
    add("--limit-per-category", metavar="N", type=int, help="with --by-category: only the first N prompts of each")


def _add_distill(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The target writes chats with itself; a small model learns its choices and becomes a draft. Killed and "
        "started again with the same options, it goes on where it was."
    )
    add = parser.add_argument
    add("--target", metavar="T", default=argparse.SUPPRESS, help="whose draft to train")
    add("--out", metavar="FOLDER", required=True, help="a new folder, where the draft goes")
    add("--kind", metavar="K", default="tiny", help="tiny (default), pruned, pruned-two, feature or ngram")
    add("--after", metavar="D", action="append", default=[], help="for tiny or pruned: an earlier draft of the "
        "target; the new one learns what it misses, to share a tree with it; may be given again")  # fmt: skip
    add("--start", metavar="D", help="a finished draft of the same kind and target, whose weights are trained "
        "further; for pruned-two also one of the kind pruned")  # fmt: skip
    add("--minutes", metavar="X", type=float, default=argparse.SUPPRESS, help="time for data and training")
    add("--data-tokens", metavar="N", type=int, default=argparse.SUPPRESS, help="answer tokens to write")
    add("--prompts", metavar="FILE", help="a JSONL file of own prompts")
    add("--seed", metavar="N", type=int, default=argparse.SUPPRESS, help="repeat the same data and first weights")


def _whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
