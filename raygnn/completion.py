"""Completion of the command `raygnn` in a shell: `raygnn completion bash` or `zsh`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module

from raygnn.command_line import exit_process
from raygnn.console import show

#: Commands that take keys of the config as options.
_TAKE_KEYS = ("train", "tune", "infer", "explain", "serve", "presample")

_SCRIPT = """\
# Completion of raygnn, written by: raygnn completion {shell}
{start}_raygnn() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    case "$command" in
{cases}
    esac
    COMPREPLY=()
    case "$command $COMP_CWORD $current" in
        *" -"*|"prepare 2 "*|"completion 2 "*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    esac
}}
complete -o default -F _raygnn raygnn
"""
_STARTS = {
    "bash": "",
    "zsh": "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n",
}
_EXAMPLES = """\
examples:
  source <(raygnn completion bash)                               in this shell
  raygnn completion bash > ~/.local/share/bash-completion/completions/raygnn
  echo 'source <(raygnn completion zsh)' >> ~/.zshrc
"""


def script(shell: str, commands: Sequence[str]) -> str:
    """Shell completion of commands, options and config keys; file names otherwise."""
    cases = [
        f'        {name}) words="{" ".join(words)}" ;;'
        for name, words in _words(commands).items()
        if words
    ]
    return _SCRIPT.format(
        shell=shell, start=_STARTS[shell], commands=" ".join(commands), cases="\n".join(cases)
    )


def _words(commands: Sequence[str]) -> Mapping[str, list[str]]:
    from raygnn.config.reference import config_keys

    keys = [f"--{key}" for key in config_keys()]
    found: dict[str, list[str]] = {"completion": list(_STARTS)}
    for name in commands:
        if name not in ("completion", "version"):
            parser = import_module(f"raygnn.{name}").build_parser()
            words = dict.fromkeys(_options(parser))
            found[name] = [*words, *(keys if name in _TAKE_KEYS else ())]
    return found


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from (option for option in action.option_strings if option.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield name
                yield from _options(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the script."""
    from raygnn.__main__ import COMMANDS

    show(script(build_parser().parse_args(argv).shell, list(COMMANDS)))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="raygnn completion",
        description="Prints what completes commands, options and keys of the config in a shell.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=list(_STARTS))
    return parser


if __name__ == "__main__":
    exit_process(main)
