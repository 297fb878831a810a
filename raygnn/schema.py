"""Command line of schemas: `python -m raygnn.schema`."""

from __future__ import annotations

import argparse
import json

from raygnn.command_line import command, command_parser, exit_process
from raygnn.config_schema import config_json_schema
from raygnn.console import give_result, show
from raygnn.data.manifest import Manifest
from raygnn.json_output import line_json_schema

_DESCRIPTION = """\
Prints the JSON Schema of a training config, of graph.yaml or of a line that --json prints, for
editors and programs.
"""
_EXAMPLES = """
raygnn schema config > train.schema.json
raygnn schema graph > graph.schema.json
raygnn schema output > output.schema.json
"""
_SCHEMAS = {
    "config": config_json_schema,
    "graph": Manifest.model_json_schema,
    "output": line_json_schema,
}


def _run(options: argparse.Namespace) -> None:
    schema = _SCHEMAS[options.what]()
    show(json.dumps(schema, indent=2) + "\n")
    give_result(schema=schema)


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn schema", _EXAMPLES, description=_DESCRIPTION)
    parser.add_argument(
        "what", choices=list(_SCHEMAS), help="a config, graph.yaml, or a line of --json"
    )
    return parser


main = command(_run, build_parser, interrupted="nothing was printed")

if __name__ == "__main__":
    exit_process(main)
