"""The command line: its arguments and its exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax

from fbuf._versions import VERSION
from fbuf.checkpoint import paths
from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checks.foreign import printable
from fbuf.command import inspect, opened, plan, verify
from fbuf.doctor import picture
from fbuf.doctor.finding import Report
from fbuf.doctor.look import Found, look
from fbuf.doctor.report import of_found
from fbuf.doctor.rewards import Asked

_EXIT_CODES = """\
exit codes:
  0  all is well
  1  a checkpoint is damaged (inspect does not check its rows); of doctor: something is suspicious
  2  the arguments are wrong, there is no checkpoint, or it is of a newer fbuf; of doctor: or it is
     damaged
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code; None takes the arguments of the process."""
    # A training run may have the accelerator.
    jax.config.update("jax_platforms", "cpu")
    given = _parser().parse_args(arguments)
    try:
        with jax.enable_x64(True):  # saved arrays may have 64 bits
            return given.run(given)
    except Mismatch as error:
        _say(f"fbuf: {_short(error)}", file=sys.stderr)
        return 2
    except CheckpointError as error:
        _say(f"fbuf: {_short(error)}", file=sys.stderr)
        return given.damaged
    except BrokenPipeError:  # the reader has seen enough
        return 0
    except (ValueError, TypeError, OSError, MemoryError, ImportError) as error:
        _say(f"fbuf: {_short(error)}", file=sys.stderr)
        return 2


def _short(error: Exception) -> str:
    """Return the message of an error without the name of a function, which nobody called here."""
    said = str(error)
    for name in (
        "fbuf.load: ",
        "fbuf.sharded.load: ",
        "fbuf.nbytes: ",
        "fbuf.init: ",
        "fbuf.inspect: ",
        "fbuf.doctor: ",
    ):
        said = said.removeprefix(name)
    return said


def _say(text: str, **options: Any) -> None:
    """Print a text that may have words of a file in it: a terminal obeys escape sequences."""
    print("\n".join(map(printable, text.split("\n"))), **options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fbuf",
        description="Look at checkpoints of replay buffers, and plan their memory.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fbuf {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("inspect", help="print what the newest checkpoint holds")
    one.add_argument("path", type=_path, help="the directory given to fbuf.save")
    one.add_argument("--reward", help="the field of the reward; found by its name if left out")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.add_argument("--plot", type=_path, metavar="OUT.png", help="draw it, too")
    one.set_defaults(run=_inspect, damaged=1)

    one = commands.add_parser(
        "doctor",
        help="say what is suspicious in the newest checkpoint",
        description="Say what is suspicious in the newest checkpoint, for when an agent does not "
        "learn: what fbuf.report says of a buffer. It reads every byte, and holds it against its "
        "checksum.",
    )
    one.add_argument("path", type=_path, help="the directory given to fbuf.save")
    one.add_argument("--reward", help="the field of the reward; found by its name if left out")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.add_argument("--plot", type=_path, metavar="OUT.png", help="draw it, too")
    one.set_defaults(run=_doctor, damaged=2)

    one = commands.add_parser("verify", help="check every byte of every checkpoint")
    one.add_argument("path", type=_path, help="the directory given to fbuf.save")
    one.set_defaults(run=_verify, damaged=1)

    one = commands.add_parser(
        "plan",
        help="how large a buffer is, or how many rows fit",
        description="How much memory a buffer of so many rows takes, or how many rows fit into so "
        "much memory.",
        epilog="example: fbuf plan 24GiB obs:uint8:84x84x4 action:int32 reward:float32 "
        "--sampler prioritized --num-envs 8",
    )
    one.add_argument("size", help="rows (1_000_000 or 1e6), or memory with its unit (24GiB or 24G)")
    one.add_argument(
        "fields",
        metavar="field",
        nargs="+",
        help="name:dtype or name:dtype:shape, as obs:uint8:84x84, or obs.camera:uint8:84x84",
    )
    one.add_argument("--sampler", choices=[*plan.SAMPLERS, plan.GROUPED], default="uniform")
    one.add_argument("--groups", metavar="FIELD:COUNT", help="of --sampler grouped, as task:3")
    one.add_argument("--window", type=int, default=1, help="rows of one episode that are drawn")
    one.add_argument("--num-envs", type=int, help="environments with lanes of their own")
    one.add_argument("--next-of", metavar="FIELD", help="the observation whose successor is kept")
    one.add_argument("--max-ends", type=int, help="ends of episodes to keep the last one of")
    one.set_defaults(run=_plan, damaged=1)
    return parser


def _path(given: str) -> pathlib.Path:
    """Return a path, with `~` and links resolved."""
    try:
        return paths.local("fbuf", given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _inspect(given: argparse.Namespace) -> int:
    lacks_plot = _lacks_plot(given)

    def use(checkpoint: opened.Opened) -> Found:
        found = inspect.found(checkpoint, given.reward)
        _plot(given, checkpoint, found)
        return found

    found = opened.read(given.path, use)
    if given.json:  # in which there is no NaN
        print(json.dumps(found.figures, indent=1, allow_nan=False))
    else:
        _say(inspect.table(found))
    return 2 if lacks_plot else 0


def _doctor(given: argparse.Namespace) -> int:
    lacks_plot = _lacks_plot(given)

    def use(checkpoint: opened.Opened) -> Report:
        found = look(checkpoint.parts, Asked(given.reward, "doctor", "--reward"))
        _plot(given, checkpoint, found)
        return of_found(found)

    # A report on damaged rows would speak of a run that never was.
    report = opened.read(given.path, use, whole="fbuf doctor")
    if given.json:
        print(json.dumps(dataclasses.asdict(report), indent=1, allow_nan=False))
    else:
        _say(str(report))
    return 2 if lacks_plot else int(bool(report.findings))


def _lacks_plot(given: argparse.Namespace) -> bool:
    """Say at once that Matplotlib is missing, and go on without a picture."""
    if given.plot is None:
        return False
    try:
        picture.require("--plot")
    except ImportError as error:
        print(f"fbuf: {error}", file=sys.stderr)
        given.plot = None
        return True
    return False


def _plot(given: argparse.Namespace, checkpoint: opened.Opened, found: Found) -> None:
    """Draw the content of a checkpoint if asked to; a name without a suffix gets `.png`."""
    if given.plot is None:
        return
    out: pathlib.Path = given.plot
    out = out if out.suffix else out.with_name(f"{out.name}.png")
    picture.drawn(found, checkpoint.title).savefig(out, dpi=120)
    found.figures["plot"] = str(out)


def _verify(given: argparse.Namespace) -> int:
    faults: list[CheckpointError | None] = []
    for name, fault in verify.each(given.path):
        _say(f"{name}: {'whole' if fault is None else _short(fault)}")
        faults.append(fault)
    if all(fault is None or isinstance(fault, Mismatch) for fault in faults):
        return 2 if any(faults) else 0
    return 1


def _plan(given: argparse.Namespace) -> int:
    options = {name: value for name, value in vars(given).items() if name not in ("run", "damaged")}
    print(plan.table(**options))
    return 0
