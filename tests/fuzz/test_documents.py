"""Whatever a file or an override holds, reading it succeeds or ends with status 2, in seconds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from raygnn.config import load_config
from raygnn.data.checksums import dump_record
from raygnn.data.manifest import Manifest
from raygnn.documents import parse_json
from raygnn.errors import RaygnnError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.target import output_classes
from tests.fuzz.cases import cases

_ROOT = Path(__file__).parents[2]

_GRAPH = (_ROOT / "docs" / "graph-format.md").read_text().split("```yaml\n")[1].split("```")[0]
_MODEL = dump_record(
    {
        "format": "raygnn/model-v1",
        "raygnn": "0.1.0",
        "feature": "x",
        "node_types": {"user": {"width": 3, "ids": None, "num_nodes": None}},
        "edge_types": ["user__knows__user"],
        "edge_columns": {"weight": {"user__knows__user": 1}},
        "standardization": {},
        "transforms": {},
        "edge_inputs": {"weight": "edge_weight"},
        "fanouts": {"user__knows__user": [4, 3]},
        "nodes": {
            "node_type": "user",
            "label": "y",
            "problem": "multi_class",
            "num_outputs": 2,
            "class_names": ["a", "b"],
        },
        "links": None,
    }
)


def _override(text: str) -> None:
    tokens = [line for line in text.splitlines() if line.strip()]
    load_config("seed: 0\n", [f"--{tokens[0]}" if tokens else "--seed", *tokens[1:3]])
    load_config("seed: 0\n", [f"--model.args.x={text}", f"--sampling.fanouts={text}"])


def _config(text: str) -> None:
    loaded = load_config(f"{text}\n", allow_modules=["my_pkg"])
    assert load_config(f"{loaded.saved_yaml()}\n", allow_modules=["my_pkg"]).saved == loaded.saved
    assert loaded.fingerprint()


_READERS: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "config": (_config, [path.read_text() for path in sorted(_ROOT.glob("examples/*.yaml"))]),
    "override": (_override, ["a.b.0=1", "seed: 3", "[15, 10]", "{a: [1, {b: 1e-3}]}"]),
    "graph.yaml": (Manifest.parse, [_GRAPH]),
    "model.json": (
        lambda text: ModelSpec.from_json(text, "model.json", output_classes()),
        [_MODEL],
    ),
    "json": (parse_json, [_MODEL, '{"status": "running", "starts": [{"time": 1e5}]}']),
}

_LEVELS = range(1, 30)
_BOMBS = {
    "aliases": "x0: &x0 [1]\n" + "".join(f"x{i}: &x{i} [{f'*x{i - 1}, ' * 9}]\n" for i in _LEVELS),
    "merges": "x0: &x0 {a: 1}\n"
    + "".join(f"x{i}: &x{i} {{<<: [{f'*x{i - 1}, ' * 9}]}}\n" for i in _LEVELS),
    "references": "x0: aaaaaaaa\n"
    + "".join(f"x{i}: ${{x{i - 1}}}${{x{i - 1}}}\n" for i in _LEVELS),
    "empty references": "x0: ''\n"
    + "".join(f"x{i}: ${{x{i - 1}}}${{x{i - 1}}}\n" for i in _LEVELS),
    "lists of references": "x0: [1]\n"
    + "".join(f"x{i}: [" + f"'${{x{i - 1}}}', " * 9 + "]\n" for i in _LEVELS),
    "an alias of itself": "a: &a {b: *a, c: [*a, *a]}\n",
    "a chain": "".join(f"x{i}: ${{x{i + 1}}}\n" for i in range(5_000)) + "x5000: 1\n",
    "bad references": "".join(f"key_{i}: ${{kay_{i}}}\n" for i in range(500)),
    "unknown keys": "".join(f"traning_{i}: 1\n" for i in range(2_000)),
    "one key": "seed: 1\n" * 5_000,
    "a long word": "job_name: " + "a" * 500_000,
    "colons": "job_name: '" + "a://" * 100_000 + "'",
    "many values": "losses: [" + "1, " * 5_000 + "]",
}
_VALUES = {
    "4,400 digits": "9" * 4_400,
    "hexadecimal digits": "0x" + "f" * 4_400,
    "a long exponent": "1e" + "9" * 4_400,
    "no date": "2020-13-45",
    "no time": "2020-12-01T99:99:99Z",
    "the first year": "0001-01-01",
    "1,500 levels": "[" * 1_500 + "]" * 1_500,
    "1,500 mappings": "{a: " * 1_500 + "}" * 1_500,
    "open brackets": "[" * 100_000,
    "dashes": "- " * 3_000,
    "questions": "? " * 3_000,
    "no int": "!!int abc",
    "no float": "!!float abc",
    "no bool": "!!bool abc",
    "no timestamp": "!!timestamp abc",
    "no binary": "!!binary \u00e9",
    "a set": "!!set {a, b}",
    "pairs": "!!omap [a, b]",
    "an object": "!!python/object/apply:os.system [ls]",
    "infinity as int": "{__value_type: int, value: .inf}",
    "NaN as int": "{__value_type: int, value: .nan}",
    "a list as float": "{__value_type: float, value: [1]}",
    "digits as int": f"{{__value_type: int, value: '{'9' * 5_000}'}}",
    "no type": "{__type: 3, __value_type: []}",
    "half a pair": '"\\ud800"',
    "half a pair as it is": "\ud800",
    "NUL": '"\\0"',
    "no character": '"\\UFFFFFFFF"',
    "2**70": str(2**70),
    "2**63": str(2**63),
    "1e30": "1e30",
    "1e400": "1e400",
    "infinity": ".inf",
    "NaN": ".nan",
    "minus zero": "-0",
    "nothing": "",
    "a tab": "\t",
    "a mapping key": "{[1]: 2, {a: 1}: 3}",
    "null keys": "{null: 1, 1: 2, true: 3, ~: 4}",
    "a reference": "${seed}",
    "an open reference": "${seed",
    "nothing referred to": "${}",
    "nested references": "${a.${b}}",
    "digits of a reference": "${losses." + "9" * 4_400 + "}",
    "a variable": "${env:NO_SUCH_VARIABLE}",
    "itself": "${model}",
    "all": "${data} ${training}",
    "a directive": "%YAML 9.9",
    "documents": "a\n---\nb\n...\nc",
    "an anchor": "&a [*a]",
    "a byte order mark": "\ufeffx",
    "a bell": "\a",
    "emoji": "\N{GRINNING FACE}",
    "right to left": "\u202eabc",
    "JSON constants": "[NaN, Infinity, -Infinity]",
    "repeated keys": '{"a": 1, "a": 2}',
    "other spaces": "\u2028\u0085",
}


def _end(read: Callable[[str], object], text: str) -> str:
    """Reads a text; what is raised must be an error of ours that ends with status 2."""
    problem: RaygnnError | None = None
    try:
        read(text)
    except RaygnnError as raised:
        problem = raised
    assert problem is None or (problem.exit_status == 2 and str(problem).strip())
    return "refused" if problem else "read"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reader", ["config", "graph.yaml", "model.json"][: len(cases(3, 1))])
@pytest.mark.parametrize("name", _BOMBS)
def test_texts_that_grow(name: str, reader: str) -> None:
    _end(_READERS[reader][0], _BOMBS[name])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reader", _READERS)
def test_odd_values_for_themselves_and_under_a_key(reader: str) -> None:
    read, (text, *_) = _READERS[reader]
    for value in _VALUES.values():
        lines = text.splitlines(keepends=True)
        forms = (f"model: {value}\n", value, f"{value}: 1\n", "".join(lines[:2]) + value)
        for odd in forms[: len(cases(full=4, short=1))]:
            _end(read, odd)


def _mutated(text: str, draw: random.Random) -> str:
    for _ in range(draw.randint(1, 4)):
        text = draw.choice(_MUTATIONS)(text, draw)
    return text


def _at(text: str, draw: random.Random) -> int:
    return draw.randrange(len(text) + 1)


def _insert_value(text: str, draw: random.Random) -> str:
    i = _at(text, draw)
    return text[:i] + draw.choice(list(_VALUES.values())) + text[i:]


def _replace_value(text: str, draw: random.Random) -> str:
    ends = [i + 1 for i, c in enumerate(text) if c == ":"] or [0]
    i = draw.choice(ends)
    end = min((j for j in (text.find(c, i) for c in ",}\n") if j >= 0), default=len(text))
    return f"{text[:i]} {draw.choice(list(_VALUES.values()))}{text[end:]}"


def _change_character(text: str, draw: random.Random) -> str:
    i = _at(text, draw)
    return text[:i] + draw.choice("{}[]:,-&*!|>'\"#%@`?<=~$. \t\n0e_\\\ud800\x00") + text[i + 1 :]


def _cut(text: str, draw: random.Random) -> str:
    i, j = sorted((_at(text, draw), _at(text, draw)))
    return text[:i] if draw.random() < 0.3 else text[:i] + text[j:]


def _repeat(text: str, draw: random.Random) -> str:
    i, j = sorted((_at(text, draw), _at(text, draw)))
    return text[:j] + text[i:j] * draw.choice([1, 2, 20]) + text[j:]


def _move_lines(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    line = lines.pop(draw.randrange(len(lines)))
    lines.insert(draw.randrange(len(lines) + 1), draw.choice([line, f"  {line}", line * 2]))
    return "".join(lines)


def _append_bomb(text: str, draw: random.Random) -> str:
    name = draw.choice(["aliases", "merges", "references", "an alias of itself"])
    return f"{text}\n{_BOMBS[name]}"


def _nest(text: str, draw: random.Random) -> str:
    return f"{{a: {text}}}" if draw.random() < 0.5 else f"[{text}]"


_MUTATIONS: list[Callable[[str, random.Random], str]] = [
    _insert_value,
    _replace_value,
    _replace_value,
    _change_character,
    _change_character,
    _cut,
    _repeat,
    _move_lines,
    _append_bomb,
    _nest,
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", cases(full=2_000, short=60))
def test_mutated_files(seed: int) -> None:
    draw = random.Random(seed)
    read, texts = _READERS[sorted(_READERS)[seed % len(_READERS)]]
    _end(read, _mutated(draw.choice(texts), draw))


def test_the_files_themselves_are_read() -> None:
    for name, (read, texts) in _READERS.items():
        ends = {_end(read, text) for text in texts}
        assert name == "override" or ends == {"read"}
