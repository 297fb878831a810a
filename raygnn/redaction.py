"""Keeps secrets out of error texts, logs and saved configs, by their names and by their form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import SecretBytes, SecretStr

REDACTED = "***"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# A name with one of these words, in any place, is that of a secret.
_SECRET_WORDS = frozenset((
    "password", "passwords", "passwd", "pwd", "passphrase", "passcode", "secret", "secrets",
    "token", "tokens", "credential", "credentials", "cred", "creds", "authorization", "bearer",
    "cookie", "cookies", "webhook", "jwt", "otp",
))  # fmt: skip
# A word may end so: `PGPASSWORD`, `clientsecret`.
_SECRET_ENDINGS = (
    "password", "passwd", "secret", "token", "apikey", "accesskey", "secretkey", "privatekey",
    "signingkey", "accountkey", "connectionstring", "sessionid",
)  # fmt: skip
# And so may a whole name: `basic_auth`, `SENTRY_DSN`; elsewhere these words mean other things.
_LAST_WORDS = frozenset(["auth", "dsn", "pass", "pat", "pin", "sas"])
# Words that are followed by `key`; `primary_key`, `public_key` and `feature_key` are no secrets.
_KEY_WORDS = frozenset((
    "access", "account", "aes", "api", "app", "auth", "client", "consumer", "deploy",
    "encryption", "hmac", "host", "license", "master", "private", "rsa", "secret", "service",
    "shared", "signing", "ssh", "storage", "subscription",
))  # fmt: skip
_PAIRS = frozenset({("connection", "string"), ("conn", "str"), ("session", "id"), ("key", "json")})
# Names that are secret only in the query of a URI.
_QUERY_WORDS = frozenset(["key", "sig", "signature"])
# A name with one of these is that of a number or a size: `num_tokens`, `max_token_length`.
_MEASURES = frozenset((
    "num", "max", "min", "count", "length", "size", "dim", "per", "limit", "ttl",
))  # fmt: skip
# Numbers are not secret but for these: a node type may be called `token`.
_NUMERIC_SECRETS = frozenset((
    "password", "passwd", "pwd", "passcode", "pin", "otp", "secret", "pass",
))  # fmt: skip

#: Longer texts are cut. Every pattern takes linear time.
_MAX_CHARACTERS = 1_000_000
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [^-\n]*-----|\Z)", re.S
)
_TOKEN = re.compile(
    r"\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|xox[abprs]-)[\w-]{16,}|\bAIza[\w-]{30,}"
)
_DIGEST = re.compile(
    r"(?i)\b(digest\s{1,4})\w{1,40}=(?:\"[^\"\n]*\"|[^\s,\"']*)"
    r"(?:\s{0,4},\s{0,4}\w{1,40}=(?:\"[^\"\n]*\"|[^\s,\"']*))*"
)
_USER = re.compile(
    r"(?<![\w-])(-u|--user)([\"'],\s{0,4}[\"']|\s{1,4}[\"']?|=)[^\s:\"']{1,200}:[^\s\"']+"
)
_CREDENTIALS = re.compile(r"(?<=[A-Za-z0-9+.-]://)[^/\s]*@")
_ENVIRONMENT = re.compile(r"(?:\w{1,40}\s{1,4})?\$\{env:[^}]{0,200}\}")
_VALUE = re.compile(
    r"(?P<quote>[\"'])(?P<quoted>(?:(?!(?P=quote))[^\n])*)|"
    r"(?:(?:Bearer|Basic|Digest|Token|ApiKey|Negotiate)\s{1,4})?[^\s&#;\"']+"
)
# Each ends before the value of `name`.
_ASSIGNMENT = re.compile(r"(?<![\w.-])(?P<name>[\w.-]{1,200})[\"']?\s{0,4}(?:=|:(?!//))\s{0,4}")
_OPTION = re.compile(r"(?<![\w-])(?P<name>--[\w.-]{1,200})(?:[\"'],\s{0,4}|\s{1,4})")
_PAIR = re.compile(
    r"(?i)\b(?:name|key|header)[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?P<name>[\w.-]{1,200})"
    r"[\"']?\s{0,4},\s{0,4}[\"']?value[\"']?\s{0,4}[:=]\s{0,4}"
)
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\s{0,4}:\s{0,4})([^\n\"']+)"
)
_BEARER = re.compile(r"(?i)\b(bearer\s{1,4})[\w.~+/=-]{8,}")


_MIN_HIDDEN = 8  # a shorter text of the environment would be hidden inside of other words
_read: dict[str, str] = {}


def remember_environment(values: Mapping[str, str]) -> None:
    """Notes environment variables that a config of this process has read."""
    _read.update(values)


def forget_environment() -> None:
    _read.clear()


def without_environment(text: str) -> str:
    """A text with `${env:X}` in place of the values that configs of this process have read."""
    for name, value in _read.items():
        if len(value) >= _MIN_HIDDEN:
            text = text.replace(value, f"${{env:{name}}}")
    return text


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """Replaces secrets in a text: `s3://key:secret@host/x` becomes `s3://***@host/x`.

    Also values of secret names (`?pwd=x`, `AccountKey=x;`, `"token": "x"`, `--password x`), text
    after `Authorization:`, `Cookie:`, `Bearer` and `Digest`, private keys, tokens of known forms,
    and `-u user:password`. `secrets`: texts known to be secret.
    """
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}... ({len(text) - _MAX_CHARACTERS:,} more characters)"
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = _CREDENTIALS.sub(f"{REDACTED}@", text)
    for pattern in (_PEM, _TOKEN):
        text = pattern.sub(REDACTED, text)
    text = _DIGEST.sub(rf"\g<1>{REDACTED}", text)
    text = _USER.sub(rf"\g<1>\g<2>{REDACTED}", text)
    text = _HEADER.sub(_without_header, text)
    for pattern in (_ASSIGNMENT, _OPTION, _PAIR):
        text = _without_values(pattern, text)
    return _BEARER.sub(rf"\g<1>{REDACTED}", text)


def is_secret_name(name: object) -> bool:
    """Whether a key is named like a secret: `apiKey`, `db.password`."""
    if not isinstance(name, str):
        return False
    words = _words(name)
    if not words or not _MEASURES.isdisjoint(words):
        return False
    pairs = set(itertools.pairwise(words))
    return (
        not _SECRET_WORDS.isdisjoint(words)
        or words[-1] in _LAST_WORDS
        or any(word.endswith(_SECRET_ENDINGS) for word in words)
        or any(second in ("key", "keys") and first in _KEY_WORDS for first, second in pairs)
        or not _PAIRS.isdisjoint(pairs)
    )


def redact(value: Any, secrets: Collection[str] = (), path: Sequence[object] = ()) -> Any:
    """A copy without secrets: `SecretStr`, values of secret names, and secrets in texts.

    The name of an environment variable alone, `${env:X}`, is not a secret.

    Args:
        secrets: texts known to be secret.
        path: keys of the value.
    """
    if any(_hides(part, value) for part in path):
        return REDACTED
    if isinstance(value, Mapping):
        named = {str(key).lower(): inner for key, inner in value.items()}
        name = next((named[key] for key in ("name", "key", "header") if key in named), None)
        return {
            key: REDACTED
            if _hides(key, inner) or (str(key).lower() == "value" and _hides(name, inner))
            else redact(inner, secrets)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        if value and all(_is_pair(item) for item in value):  # [["password", "x"]]
            return [[key, redact({key: inner}, secrets)[key]] for key, inner in value]
        before = [None, *value]
        return [
            REDACTED if _is_before_secret(name, inner) else redact(inner, secrets)
            for name, inner in zip(before, value, strict=False)
        ]
    if isinstance(value, SecretStr | SecretBytes):
        return REDACTED
    return redact_text(value, secrets) if isinstance(value, str) else value


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name.rpartition(".")[2])]


def _hides(name: object, value: Any) -> bool:
    if value is None or isinstance(value, bool) or not is_secret_name(name):
        return False
    if isinstance(value, str):
        return bool(value) and _ENVIRONMENT.fullmatch(value) is None
    if isinstance(value, list | tuple):
        return not all(isinstance(item, int | float) for item in value)
    if isinstance(value, int | float):
        return not _NUMERIC_SECRETS.isdisjoint(_words(str(name)))
    return True


def _is_pair(item: object) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str)


def _is_before_secret(item: object, value: Any) -> bool:
    if not isinstance(item, str):
        return False
    if item in ("-u", "--user"):
        return isinstance(value, str) and ":" in value
    is_name = item.startswith("-") or _HEADER.match(f"{item}: x") is not None
    return is_name and _hides(item, value)


def _without_header(match: re.Match[str]) -> str:
    is_name = _ENVIRONMENT.fullmatch(match[3].strip()) is not None
    return match[0] if is_name else f"{match[1]}{match[2]}{REDACTED}"


def _without_values(pattern: re.Pattern[str], text: str) -> str:
    parts, start = [], 0
    while (match := pattern.search(text, start)) is not None:
        parts.append(text[start : match.end()])
        start = match.end()
        if _names_secret(match):
            value = _VALUE.match(text, start)
            if value is not None and _ENVIRONMENT.fullmatch(value[0].strip("\"'")) is None:
                parts.append(f"{value['quote'] or ''}{REDACTED}")
                start = value.end()
    return "".join(parts) + text[start:]


def _names_secret(match: re.Match[str]) -> bool:
    in_query = match.string[match.start("name") - 1 : match.start("name")] in ("?", "&")
    last_word = (_words(match["name"]) or [""])[-1]
    return is_secret_name(match["name"]) or (in_query and last_word in _QUERY_WORDS)
