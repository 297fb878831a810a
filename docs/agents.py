"""Writes AGENTS.md and docs/llms.txt from code and pages: `python -m docs.agents`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml

from raygnn.__main__ import COMMANDS
from raygnn.json_output import RESULTS

ROOT = Path(__file__).parents[1]
AGENTS, LLMS = ROOT / "AGENTS.md", ROOT / "docs" / "llms.txt"
_SITE = "docs/"

#: The path from tables to a served model: command, page, and what it needs to know.
_STEPS = (
    ("raygnn schema config", "config-reference.md", "prints the JSON Schema of all configs"),
    (
        "raygnn prepare draft TABLES",
        "prepare.md",
        "describes a folder of CSV or Parquet files, or a database, as a graph: `graph.yaml`, "
        "`train.yaml`, and a printed command for labels",
    ),
    (
        'raygnn prepare labels TABLES --predict "count(orders) over 30d > 0" --for users '
        "--every 30d --val DATE --test DATE --name NAME",
        "training-tables.md",
        "makes rows of (entity, time, label) from a question, and `NAME.yaml` to train with",
    ),
    (
        "raygnn train TABLES/NAME.yaml --dry-run",
        "training.md",
        "checks the config and all tables, and estimates time and memory",
    ),
    (
        "raygnn train TABLES/NAME.yaml --run.name NAME --json",
        "training.md",
        "trains, validates, tests, and writes `runs/NAME`",
    ),
    (
        "raygnn report runs/NAME --top 5%",
        "reports.md",
        "prints a decision by the test rows; without `--top`, writes a page that compares runs",
    ),
    (
        "raygnn infer runs/NAME --rows rows.csv --out answers.csv",
        "inference.md",
        "predicts rows of (id, time)",
    ),
    (
        "raygnn explain runs/NAME --graph TABLES --rows rows.csv --out why",
        "explanations.md",
        "explains predictions by columns and edges",
    ),
    ("raygnn serve runs/NAME --graph TABLES", "serving.md", "answers requests over HTTP"),
)


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def _section(name: str, heading: str) -> str:
    """The text below a heading of a page."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", _page(name), re.M | re.S)
    assert found is not None, (name, heading)
    return found[1].strip()


def _table(text: str, first: str) -> str:
    """The table whose first head is `first`."""
    found = re.search(rf"^\| {re.escape(first)} \|.*\n(?:\|.*\n?)+", text, re.M)
    assert found is not None, first
    return found[0].strip()


def _without_links(text: str) -> str:
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)


def _summary(name: str) -> str:
    """The first sentence of a page."""
    body = re.sub(r"\A# .*\n", "", _page(name))
    paragraph = next(
        part for part in re.split(r"\n\s*\n", body) if re.match(r"\s*([A-Z`*\[]|raygnn )", part)
    )
    words = " ".join(_without_links(paragraph).split())
    sentence = re.split(r"(?<=[.:])\s(?=[A-Z`*])", words, maxsplit=1)[0]
    return sentence.rstrip(".:").replace("**", "") + "."


def _pages() -> list[tuple[str, list[tuple[str, str]]]]:
    """Sections of the site, with titles and names of their pages."""
    text = re.sub(r"^hooks:.*$", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M)
    found = []
    for entry in yaml.safe_load(text[text.index("\nnav:") :])["nav"]:
        ((section, pages),) = entry.items()
        if isinstance(pages, list):
            named = [next(iter(page.items())) for page in pages]
            named = [(t, p) for t, p in named if p.endswith(".md") and not p.startswith("api/")]
            found.append((section, [(t, p) for t, p in named if (ROOT / "docs" / p).exists()]))
    return found


def _results() -> list[str]:
    rows = []
    for name, values in RESULTS.items():
        cells = [f"`{key}` ({kind}): {what}" for key, (kind, what) in values.items()]
        if cells:
            rows.append(f"| `{name}` | {'; '.join(cells)} |")
    return rows


def agents() -> str:
    """The page for coding agents."""
    steps = [
        f"{number}. {what[0].upper()}{what[1:]} ([{page}]({_SITE}{page})):\n\n       {command}\n"
        for number, (command, page, what) in enumerate(_STEPS, 1)
    ]
    commands = [f"| `raygnn {name}` | {what} |" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "# For coding agents",
            "",
            "raygnn trains graph neural networks on tables and serves them. The steps below are",
            "also tools of a [server](docs/serving.md#tools-for-coding-agents), `raygnn mcp`.",
            "`python -m docs.agents` writes this page. All pages: [docs/llms.txt](docs/llms.txt).",
            "",
            "## From tables to a served model",
            "",
            *steps,
            "## Rules",
            "",
            "- `raygnn schema graph` prints the JSON Schema of `graph.yaml`. Any key of a config",
            "  is an option: `--optimizer.args.lr 0.002`. [All keys](docs/config-reference.md).",
            "- Every mistake in an input is printed on standard error with a rule, a remedy and an",
            "  [id](docs/errors.md) in brackets, all together. Nothing is written then.",
            "- Every command has `--json`: one JSON object a line, the",
            "  [result](#results) last. `raygnn schema output` prints their JSON Schema;",
            "  [events of a run](docs/training.md#what-a-run-prints).",
            "- A run that is started again under its `--run.name` resumes.",
            "- Whether a result is worth anything: `verdict` and `no_better_than_baseline` in",
            "  `metrics.json`.",
            "",
            "## Exit statuses",
            "",
            _table(_page("training.md"), "exit status"),
            "",
            "These are of all commands. Some end with 3 for another answer: `prepare draft` if no",
            "column refers to a table, `retrain` if the champion stays, `monitor` if there is an",
            "alarm.",
            "",
            "## Results",
            "",
            "The last line of `--json` has `event: result`, `exit_status`, and, unless that is 0,",
            "`error` (the text) and `ids` (of the errors), and:",
            "",
            "| command | values |",
            "|---|---|",
            *_results(),
            "",
            "## Files of a run",
            "",
            _without_links(_table(_section("index.md", "What a run leaves"), "file")),
            "",
            "## Details in metrics.json",
            "",
            _without_links(_table(_section("reports.md", "Details in `metrics.json`"), "key")),
            "",
            "## Commands",
            "",
            "| command | what it does |",
            "|---|---|",
            *commands,
            "",
            "## Working on raygnn itself",
            "",
            "[CONTRIBUTING.md](CONTRIBUTING.md), [docs/architecture.md](docs/architecture.md),",
            "[docs/decisions.md](docs/decisions.md).",
            "",
        ]
    )


def llms() -> str:
    """The list of pages, in the form of llmstxt.org."""
    parts = ["# raygnn", "", f"> {_summary('index.md')}", ""]
    for section, pages in _pages():
        parts += [f"## {section}", ""]
        parts += [f"- [{title}]({page}): {_summary(page)}" for title, page in pages]
        parts.append("")
    return "\n".join(parts)


def main() -> int:
    """Writes both files."""
    for path, text in ((AGENTS, agents()), (LLMS, llms())):
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
