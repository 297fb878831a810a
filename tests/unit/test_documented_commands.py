"""Command lines and configs in the documentation have options and keys that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from raygnn.__main__ import COMMANDS, command_module
from raygnn.config import ConfigError, load_config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted(ROOT.glob("docs/**/*.md"))]
_BLOCK = re.compile(
    r"^```(?:bash|console)\n(.*?)^```|((?:^ {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL
)
_COMMAND = re.compile(rf"(?:raygnn |python -m raygnn\.)({'|'.join(COMMANDS)}) (.+)")


def documented_commands() -> list[tuple[str, str]]:
    """Names and arguments of the commands in code blocks."""
    texts = [re.sub(r"\\\n\s*", "", page.read_text("utf-8")) for page in PAGES]
    blocks = ["".join(found) for text in texts for found in _BLOCK.findall(text)]
    commands = {found for block in blocks for found in _COMMAND.findall(block)}
    return sorted((name, line.strip()) for name, line in commands if ".train  .tune" not in line)


def test_the_pages_show_every_command():
    found = {name for name, _ in documented_commands()}
    assert found >= {*COMMANDS} - {"version", "mcp"}  # no arguments


@pytest.mark.parametrize(("name", "line"), documented_commands())
def test_options_and_keys_of_a_command_exist(name, line):
    parser = command_module(name).build_parser()
    words = shlex.split(line, comments=True)
    words = words[: words.index(">")] if ">" in words else words
    options, rest = parser.parse_known_args(words)
    overrides = rest[next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest)) :]
    load_config({}, overrides, getattr(options, "allow_modules", ()))


@pytest.mark.parametrize("line", ["t.yaml --run.nmae x", "t.yaml --sampling.fanout '[5]'"])
def test_a_key_that_does_not_exist_is_noticed(line):
    with pytest.raises(ConfigError, match="unknown"):
        test_options_and_keys_of_a_command_exist("train", line)


DOCS = Path(__file__).parents[2] / "docs"
CONFIG_PAGES = ("training", "neighborhoods", "models", "losses", "scaling", "link-prediction")
BLOCKS = [
    block
    for page in CONFIG_PAGES
    for block in re.findall(r"```yaml\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition(":")[0])
def test_a_block_loads(block, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(block)
    load_config(str(path), allow_modules=["my_pkg"])
