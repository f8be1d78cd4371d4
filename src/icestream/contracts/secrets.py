"""Recognises secrets by the name of a setting or the form of its value, and masks them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import BaseModel, SecretStr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SECRET_KEY = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|authorization|jaas|"
    r"(access|api|private|account|storage|service[-_.]?account)[-_.]?key|"
    r"connection[-_.]?string|\bsas\b|signature",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|[?&;]\w*(password|token|secret|sig)=|accountkey=", re.IGNORECASE
)
HIDDEN = "(hidden)"
# A shorter secret occurs within too many words, and masking those would garble the text.
MIN_SUBSTRING_LENGTH = 4


def is_secret(key: str, value: str = "") -> bool:
    """Tell whether a setting's value must be hidden."""
    return bool(SECRET_KEY.search(key) or SECRET_VALUE.search(value))


def secrets_in(options: BaseModel) -> Iterator[str]:
    """Yield every secret of an option model, those of its blocks included."""
    for name in type(options).model_fields:
        value = getattr(options, name)
        if isinstance(value, BaseModel):
            yield from secrets_in(value)
        for item in _items(value):
            if isinstance(item, SecretStr) and item.get_secret_value():
                yield item.get_secret_value()


def _items(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else (value,)


def without_secrets(text: str, *models: BaseModel) -> str:
    """Return a text with the secrets of option models masked."""
    return hide(text, (secret for model in models for secret in secrets_in(model)))


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return a text with secrets masked; a very short one only where it is a whole word."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= MIN_SUBSTRING_LENGTH:
            text = text.replace(secret, "***")
        elif secret:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text
