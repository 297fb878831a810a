"""Command line of schemas: `python -m raygnn.schema`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from raygnn.command_line import command_parser, exit_process, exit_status_of
from raygnn.config_schema import config_json_schema
from raygnn.console import give_result, show
from raygnn.data.manifest import Manifest
from raygnn.json_output import line_json_schema, with_json

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


@with_json
def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)

    def run() -> None:
        schema = _SCHEMAS[options.what]()
        show(json.dumps(schema, indent=2) + "\n")
        give_result(schema=schema)

    return exit_status_of(run, interrupted="nothing was printed")


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn schema", _EXAMPLES, description=_DESCRIPTION)
    parser.add_argument(
        "what", choices=list(_SCHEMAS), help="a config, graph.yaml, or a line of --json"
    )
    return parser


if __name__ == "__main__":
    exit_process(main)
