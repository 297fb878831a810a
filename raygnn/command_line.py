"""Options, config loading and exit statuses, shared by the command lines."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

from raygnn.config import LoadedConfig, load_config
from raygnn.console import print_nothing, printing, say
from raygnn.data.filesystem import redact
from raygnn.data.storage_retry import is_storage_error
from raygnn.errors import ConfigError, PreemptedError, RaygnnError
from raygnn.json_output import Main, with_json
from raygnn.loops.signals import Terminated, signals_as_interrupts
from raygnn.process_start import exit_normally
from raygnn.redaction import forget_environment, without_environment


def command_parser(
    prog: str, examples: str, *, usage: str | None = None, description: str | None = None
) -> argparse.ArgumentParser:
    """A parser whose help ends with examples. Commands with a usage take config keys too."""
    lines = "".join(f"  {line}\n" for line in examples.strip().splitlines())
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=description,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    text = "print one JSON object per line, the result last, see docs/training.md"
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=text)
    return parser


def config_parser(prog: str, usage: str, examples: str) -> argparse.ArgumentParser:
    parser = command_parser(prog, examples, usage=usage)
    instead = parser.add_argument_group("instead of a run")
    instead.add_argument("--print-config", action="store_true", help="print all keys and stop")
    add_allow_module(parser)
    add_output_options(parser)
    return parser


def add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--quiet", action="store_true", help="print warnings and errors only")


def add_allow_module(
    parser: argparse.ArgumentParser, what: str = "module whose classes the config may name"
) -> None:
    parser.add_argument(
        "--allow-module",
        dest="allow_modules",
        action="append",
        default=[],
        metavar="MODULE",
        help=f"{what} (repeatable)",
    )


def add_as_of(add: Callable[..., object]) -> None:
    """Adds `--as-of`, the moment of all predictions, to a group of options."""
    add("--as-of", metavar="TIME", help="date, number or latest (default: times of the rows)")


def check_model_argument(arguments: Sequence[str], usage: str) -> None:
    check_arguments(arguments, 1, "MODEL comes first", usage, id="command-model-missing")


def check_arguments(
    arguments: Sequence[str | None], num: int, rule: str, usage: str, *, id: str
) -> None:
    """Raises a ConfigError unless `num` arguments are given before any `--option`."""
    given = [each for each in arguments[:num] if each is not None and not each.startswith("--")]
    if len(given) < num:
        raise ConfigError(f"the arguments {given} are invalid: {rule}. {usage}", id=id)


def load_from_arguments(
    arguments: Sequence[str], allow_modules: Sequence[str], usage: str
) -> LoadedConfig:
    """Loads CONFIG with its overrides. Raises ConfigError if CONFIG is missing or invalid."""
    check_arguments(arguments, 1, "CONFIG comes first", usage, id="command-config-missing")
    return load_config(arguments[0], arguments[1:], allow_modules)


def exit_process(main: Callable[[], int]) -> NoReturn:
    """Runs a command line and ends the process with its exit status.

    A second Ctrl-C changes neither the status nor the cleanup, such as the end of Ray's processes.
    """
    try:
        exit_normally()
        status = main()
    except KeyboardInterrupt:  # a command without `exit_status_of`, or a second Ctrl-C
        print("stopped by SIGINT", file=sys.stderr)
        status = 130
    if status in (130, 143):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def command(
    run: Callable[..., int | None],
    build_parser: Callable[[], argparse.ArgumentParser],
    *,
    interrupted: str,
) -> Main:
    """The main function of a command, with `--json`, `--quiet` and exit statuses.

    Args:
        run: called with the options; for a parser with a usage, also with the arguments that the
            parser does not know.
        interrupted: as in `exit_status_of`.
    """

    @with_json
    def main(argv: Sequence[str] | None = None) -> int:
        parser = build_parser()
        options, *rest = (
            parser.parse_known_args(argv) if parser.usage else (parser.parse_args(argv),)
        )
        quiet = printing(print_nothing) if getattr(options, "quiet", False) else nullcontext()
        with quiet:
            return exit_status_of(lambda: run(options, *rest), interrupted=interrupted)

    named: Any = main
    named.__module__, named.__qualname__ = run.__module__, "main"  # where pickle finds it
    return main


def exit_status_of(command: Callable[[], int | None], *, interrupted: str) -> int:
    """Runs a command, prints its error on stderr, and returns its exit status.

    Args:
        interrupted: the line to print after a signal.
    Returns:
        That of the command, 0 for None, 1 (failed), 2 (invalid input), or 130 and 143 (stopped by
        Ctrl-C or SIGTERM).
    """
    forget_environment()
    try:
        with signals_as_interrupts():
            return command() or 0
    except RaygnnError as error:
        if isinstance(error, PreemptedError):
            say("", "stop", reason=error.cause)
        text = redact(without_environment(str(error)))
        print(f"{type(error).__name__}:\n{text}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt as stop:  # before training, or a second time
        name, status = ("SIGTERM", 143) if isinstance(stop, Terminated) else ("SIGINT", 130)
        say("", "stop", reason=name)
        print(f"stopped by {name}: {interrupted}", file=sys.stderr)
        return status
    except SystemExit as stop:  # raised by user code, outside the stages whose errors ranks share
        print(f"failed: the code of the run called sys.exit({stop.code!r})", file=sys.stderr)
        return 1
    except Exception as error:
        if not is_storage_error(error):
            raise
        causes = ", ".join([str(error), *getattr(error, "__notes__", [])])
        failed = RaygnnError(
            f"storage failed: {type(error).__name__}: {redact(without_environment(causes))}. Check "
            "that the store can be reached and has space, then repeat the command. [storage-failed]"
        )
        print(failed, file=sys.stderr)
        return failed.exit_status
