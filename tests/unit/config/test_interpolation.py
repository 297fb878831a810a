"""References to other keys and to the environment."""

from __future__ import annotations

from typing import Any

import pytest

from raygnn.config.interpolation import interpolate

ENV = {"N": "4", "HOST": "db", "LIST": "[1, 2]", "PAIR": "a: b", "BAD": "[1", "EMPTY": ""}


def resolved(raw: dict[str, Any], defaults: dict[str, Any] | None = None) -> Any:
    result = interpolate(raw, defaults or {}, ENV)
    assert result.problems == []
    return result.value


def rules(raw: dict[str, Any]) -> list[str]:
    return [problem.text() for problem in interpolate(raw, {"seed": 0}, ENV).problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${a}", 3),
        ("x-${a}", "x-3"),
        ("${l}", [1, {"m": 2}]),
        ("${l.1.m}", 2),
        ("${t}${a}", "true3"),
        ("${nothing}/${half}", "null/0.5"),
        ("${env:N}", 4),
        ("n${env:N}", "n4"),
        ("${env:LIST}", [1, 2]),
        ("${env:PAIR}", "a: b"),
        ("${env:BAD}", "[1"),
        ("${env:EMPTY}", None),
        ("$${a}", "${a}"),
        ("$${env:N} ${a}", "${env:N} 3"),
        ("${chain}", 3),
        ("${d}", 7),
        ("no reference, $5", "no reference, $5"),
    ],
)
def test_values_and_their_types(text: str, value: Any) -> None:
    raw = {"a": 3, "l": [1, {"m": 2}], "t": True, "nothing": None, "half": 0.5, "chain": "${a}"}
    found = resolved({**raw, "text": text}, {"d": 7})["text"]
    assert found == value
    assert type(found) is type(value)


def test_a_value_that_is_taken_twice_is_two_values() -> None:
    value = resolved({"a": [1], "b": "${a}"})
    value["b"].append(2)
    assert value["a"] == [1]


def test_what_is_shown_keeps_the_names_of_the_environment() -> None:
    raw = {"a": "${env:N}", "b": "${a}", "c": "x/${env:HOST}/${d}", "d": 1, "e": "$${d}"}
    result = interpolate(raw, {}, ENV)
    assert result.shown == {
        "a": "${env:N}",
        "b": "${env:N}",
        "c": "x/${env:HOST}/1",
        "d": 1,
        "e": "$${d}",
    }
    assert result.texts == {("a",): "4", ("b",): "4"}
    assert result.environment == {"N": "4", "HOST": "db"}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"a": "${env:X}"}, "a is invalid: the environment variable X is not set. Export X"),
        ({"a": "b${env:X}"}, "the environment variable X is not set"),
        ({"a": "${sed}"}, "there is no value at sed. Did you mean seed?"),
        ({"run": {"name": 1}, "a": "${run.nam}"}, "no value at run.nam. Did you mean name"),
        ({"a": "${}"}, "there is no value at an empty name"),
        ({"b": 1, "a": "${b.c}"}, "there is no value at b.c"),
        ({"b": {"c": 1}, "a": "x${b}"}, "${b} is not a single value"),
        ({"a": "${b"}, "a ${ is not closed"),
        ({"a": "${a}"}, "references form a cycle: a -> a"),
        ({"a": {"b": "${a}"}}, "references form a cycle: a -> a"),
    ],
)
def test_references_that_lead_nowhere(raw: dict[str, Any], text: str) -> None:
    (only,) = rules(raw)
    assert text in only


def test_a_circle_of_two_is_told_at_both() -> None:
    assert [
        r for r in rules({"a": "${b}", "b": "x${a}"}) if "b -> a -> b" in r or "a -> b -> a" in r
    ]


def test_a_bad_reference_is_told_once_not_where_it_is_used() -> None:
    assert len(rules({"a": "${env:X}", "b": "${a}", "c": "${b}"})) == 1


@pytest.mark.parametrize(
    "raw",
    [
        {"a0": "x" * 10} | {f"a{i}": f"${{a{i - 1}}}" * 2 for i in range(1, 40)},
        {"a0": ""} | {f"a{i}": f"${{a{i - 1}}}" * 2 for i in range(1, 40)},
        {"a0": [1]} | {f"a{i}": [f"${{a{i - 1}}}"] * 9 for i in range(1, 9)},
        {"a0": 1} | {f"a{i}": f"${{a{i - 1}}}" for i in range(1, 200)},
        {f"a{i}": {"k": {"k": {"k": f"${{a{i + 1}}}"}}} for i in range(30)} | {"a30": 1},
    ],
    ids=["texts", "empty texts", "lists", "chain", "depth"],
)
def test_references_that_multiply_are_refused(raw: dict[str, Any]) -> None:
    (only,) = rules(raw)
    assert "more than 100,000 values" in only or "deeper than 64 levels" in only


def test_an_environment_variable_that_is_no_text() -> None:
    (only,) = interpolate({"a": "${env:RAW}"}, {}, {"RAW": "\udcff"}).problems
    assert "in the environment variable RAW, a text contains half" in only.rule
