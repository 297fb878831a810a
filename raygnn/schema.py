"""Command line of schemas: `python -m raygnn.schema`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from raygnn.command_line import command_parser, exit_process, exit_status_of
from raygnn.config_schema import config_json_schema
from raygnn.data.manifest import Manifest

_DESCRIPTION = """\
Prints the JSON Schema of a training config or of graph.yaml, for editors and programs.
"""
_EXAMPLES = """
raygnn schema config > train.schema.json
raygnn schema graph > graph.schema.json
"""
_SCHEMAS = {"config": config_json_schema, "graph": Manifest.model_json_schema}


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)

    def show() -> None:
        print(json.dumps(_SCHEMAS[options.what](), indent=2))

    return exit_status_of(show, interrupted="nothing was printed")


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn schema", _EXAMPLES, description=_DESCRIPTION)
    parser.add_argument("what", choices=list(_SCHEMAS), help="a config, or graph.yaml")
    return parser


if __name__ == "__main__":
    exit_process(main)
