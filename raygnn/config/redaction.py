"""Keeps secrets out of error texts and saved configs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import SecretBytes, SecretStr

REDACTED = "***"

_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s]*@")
_QUERY_SECRET = re.compile(
    r"(?i)(?P<name>[?&](?:[\w.-]*(?:token|secret|password|signature|credential|access[_-]?key)"
    r"[\w.-]*|sig|(?:[\w.-]*[_-]|api|account)?key)=)[^&#\s'\"]+"
)
_SECRET_NAME = re.compile(
    r"(?i)(?:^|_|-)(?:password|passwd|passphrase|secret|token|credentials?|"
    r"(?:api|access|private|secret|account|storage)_?key)$"
)


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """Replaces credentials in URIs: `s3://key:secret@host/x` becomes `s3://***@host/x`.

    Args:
        secrets: texts that are known to be secret.
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = _CREDENTIALS.sub(rf"\g<scheme>{REDACTED}@", text)
    return _QUERY_SECRET.sub(rf"\g<name>{REDACTED}", text)


def is_secret_name(name: object) -> bool:
    """Whether a key is named like something that nobody should read: `api_key`, `password`."""
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def redact(value: Any, secrets: Collection[str] = ()) -> Any:
    """A copy without secrets: `SecretStr`, values of secret names, credentials in URIs.

    A value that is only the name of an environment variable, `${env:X}`, is no secret.

    Args:
        secrets: texts that are known to be secret.
    """
    if isinstance(value, Mapping):
        return {
            key: REDACTED
            if is_secret_name(key) and not _is_harmless(inner)
            else redact(inner, secrets)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(inner, secrets) for inner in value]
    if isinstance(value, SecretStr | SecretBytes):
        return REDACTED
    return redact_text(value, secrets) if isinstance(value, str) else value


def _is_harmless(value: Any) -> bool:
    """Nothing there, a flag, or the mere name of an environment variable."""
    if isinstance(value, str):
        return re.fullmatch(r"\$\{env:[^}]*\}", value) is not None or not value
    return value is None or isinstance(value, bool)
