"""YAML with lines, by the rules of YAML 1.2."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.documents import dump_yaml, parse_json, parse_scalar, parse_yaml
from raygnn.errors import RuleError
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("5.", 5.0),
        (".inf", float("inf")),
        ("1_000_000", 1_000_000),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("true", True),
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("null", None),
        ("~", None),
        ("", None),
        ("1:30", "1:30"),
        ("2024-01-31", "2024-01-31"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("e3", "e3"),
        ("1.2.3", "1.2.3"),
        ('"1"', "1"),
        ("[-1, 5]", [-1, 5]),
        ("{a: 1e-6}", {"a": 1e-6}),
        ("=", "="),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_scalar(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_nan_is_a_float() -> None:
    assert parse_scalar(".nan") != parse_scalar(".nan")


def test_lines_of_keys_and_items() -> None:
    lines = parse_yaml("a: 1\nb:\n  c:\n    - 1\n    - d: 2\n").lines
    assert lines[("a",)] == 1
    assert lines[("b", "c")] == 3
    assert lines[("b", "c", 1)] == 5
    assert lines[("b", "c", 1, "d")] == 5


def test_duplicate_keys_are_problems_with_their_line() -> None:
    document = parse_yaml("a: 1\nb: {c: 1, d: 2, c: 3}\na: 2\n")
    assert [(p.path, p.line) for p in document.problems] == [(("b", "c"), 2), (("a",), 3)]
    assert "after line 1" in document.problems[1].rule


def test_anchors_and_merge_keys() -> None:
    document = parse_yaml("base: &b {x: 1, y: 2}\nmine:\n  <<: *b\n  y: 3\n")
    assert document.value["mine"] == {"x": 1, "y": 3}
    assert document.problems == []
    assert document.lines[("mine", "y")] == 4
    assert document.lines[("mine", "x")] == 1


def test_merge_of_several_mappings() -> None:
    document = parse_yaml("a: &a {x: 1}\nb: &b {y: 2}\nc: {<<: [*a, *b]}\n")
    assert document.value["c"] == {"x": 1, "y": 2}


def test_a_scalar_with_duplicate_keys_is_an_error() -> None:
    with raises("document-key-twice", "a"):
        parse_scalar("{a: 1, a: 2}")


def test_keys_that_look_like_other_types_are_words() -> None:
    assert parse_yaml("1: a\nnull: b\ntrue: c\non: d\n").value == {
        "1": "a",
        "null": "b",
        "true": "c",
        "on": "d",
    }


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)
    | st.sampled_from(["1e-3", "on", "yes", "0x1f", "010", "1:30", "~", "null", "2024-01-31", "="]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "on", "1", "b_c"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(value=_values)
def test_what_is_dumped_is_parsed_equal(value: Any) -> None:
    assert parse_yaml(dump_yaml(value)).value == value


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("a: 1\n\tb: 2\n", 2, ("document-syntax",)),
        ("a: [1, 2\nb: 3\n", 2, ("document-syntax", "flow sequence")),
        ("a: 1\nb: *missing\n", 2, ("document-syntax", "undefined alias")),
        ("a: 1\nb: !!python/object:os.system x\n", 2, ("document-tag",)),
        ("a: 1\n---\nb: 2\n", 2, ("document-syntax", "single document")),
        ("a: 1\n? [x]\n: 2\n", 2, ("document-key",)),
        ("a: 1\nb: \x01\n", 2, ("document-syntax",)),
        ("a: &a\n  b: *a\n", 1, ("document-depth",)),
        ("a: 1\nb: !!int abc\n", 2, ("document-number", "abc")),
        ("a: !!float x", 1, ("document-number", "x")),
        ("a: !!timestamp 2020-01-01", 1, ("document-tag", "timestamp")),
        ("a: !!binary x", 1, ("document-tag",)),
        ("a: !!set {b, c}", 1, ("document-tag",)),
        ("a: !!seq {b: c}", 1, ("document-tag",)),
        ("a: !!map [b]", 1, ("document-tag",)),
        ("a:\n  <<: 3\n", 2, ("document-merge",)),
        (f"a: {'9' * 4_400}", 1, ("document-number", "4,400")),
        (f"a: 0x{'f' * 4_400}", 1, ("document-number", "4,402")),
        (f"a: 1{'0' * 30}", 1, ("document-number-range", 1000000000000000000000000000000)),
        ("a: 9223372036854775808", 1, ("document-number-range", 9223372036854775808)),
        ("a: -9223372036854775809", 1, ("document-number-range", -9223372036854775809)),
        ("[" * 1_500 + "]" * 1_500, 1, ("document-depth", 64)),
        ("[" * 100_000, 1, ("document-depth", 64)),
        ("- " * 1_500 + "x", 1, ("document-depth", 64)),
        ('a: "\\ud800"', 1, ("document-character",)),
        ('"\\ud800": 1', 1, ("document-character",)),
        ('a: "\\0"', 1, ("document-character",)),
        ('a: "\\UFFFFFFFF"', 1, ("document-character",)),
        ("a: \ud800", 1, ("document-syntax", "D800")),
        ("a: " + "x" * 1_000_001, 1, ("document-size", "1,000,000")),
    ],
)
def test_malformed_texts_are_refused_with_their_line(text: str, line: int, rule: str) -> None:
    with raises(*rule) as caught:
        parse_yaml(text)
    assert caught.value.problem.line == line
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "text",
    [
        "x0: &x0 {a: 1}\n"
        + "".join(f"x{i}: &x{i} {{<<: [{f'*x{i - 1}, ' * 9}]}}\n" for i in range(1, 9)),
        "x0: &x0 [1]\n" + "".join(f"x{i}: &x{i} [{f'*x{i - 1}, ' * 9}]\n" for i in range(1, 9)),
        f"x: &x {'y' * 900_000}\nz: [{'*x, ' * 100}]",
    ],
    ids=["merges", "aliases", "texts"],
)
def test_aliases_count_where_they_lead_to(text: str) -> None:
    with raises("document-size", "100,000", "1,000,000"):
        parse_yaml(text)


def test_a_long_text_is_given_up_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raygnn.documents.MAX_VALUES", 100)
    with raises("document-size", "100 values") as caught:
        parse_yaml("- x\n" * 200 + "}}}")
    assert caught.value.problem.line == 101


def test_what_an_alias_gives_is_not_shared() -> None:
    value = parse_yaml("a: &a [1]\nb: *a\n").value
    value["b"].append(2)
    assert value["a"] == [1]


def test_tags_of_the_core_schema_and_surrogate_pairs() -> None:
    text = 'a: !!int "12"\nb: !!str 12\nc: !!float 1\nd: !!null ""\ne: "\\ud83d\\ude00"\n'
    assert parse_yaml(text).value == {
        "a": 12, "b": "12", "c": 1.0, "d": None, "e": "\N{GRINNING FACE}",
    }  # fmt: skip


def test_the_line_of_a_key_or_of_the_nearest_above() -> None:
    document = parse_yaml("a:\n  b: 1\n")
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 0)) == 1
    assert document.line(("z",)) == 1


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("[" * 100_000, ("document-depth", 64)),
        ("[" * 66 + "]" * 66, ("document-depth", 64)),
        ('{"a": NaN}', ("document-number", "NaN")),
        ('{"a": {"b": 1, "b": 2}}', ("document-key-twice", "b")),
        ("9" * 5_000, ("document-number-range", "5,000")),
        ("9" * 30, ("document-number-range",)),
        ('"\\ud800"', ("document-character",)),
        ("{", ("document-syntax", "line 1")),
        (b"\xff\xfe\x00", ("document-encoding",)),
    ],
)
def test_json_that_is_refused(content: str | bytes, rule: str) -> None:
    with raises(*rule):
        parse_json(content)


def test_json_of_a_limited_size() -> None:
    assert parse_json('{"a": [1, 2.5, null, "x"]}') == {"a": [1, 2.5, None, "x"]}
    with raises("document-size", 1):
        parse_json(b" " * (1 << 20) + b"1", max_bytes=1 << 20)


def test_an_error_survives_pickling() -> None:
    error = RuleError("it is long", "Shorten it", id="document-size", line=3)
    again = pickle.loads(pickle.dumps(error))
    assert again.problem == error.problem
    assert (
        str(again)
        == str(error)
        == "line 3: the text is invalid: it is long. Shorten it. [document-size]"
    )
