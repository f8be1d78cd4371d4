"""Tells what must not be shown, by the name of a setting or by the look of its value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import BaseModel, SecretStr

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET_KEY = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|authorization|jaas|"
    r"(access|api|private|account|storage|service[-_.]?account)[-_.]?key|"
    r"connection[-_.]?string|\bsas\b|signature",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|[?&;](password|token|secret|sig)=|accountkey=", re.IGNORECASE
)
HIDDEN = "(hidden)"


def is_secret(key: str, value: str = "") -> bool:
    """Tell whether a setting's value must be hidden."""
    return bool(SECRET_KEY.search(key) or SECRET_VALUE.search(value))


def secrets_in(options: BaseModel) -> Iterator[str]:
    """Yield every secret of an option model, those of its blocks included."""
    for name in type(options).model_fields:
        value = getattr(options, name)
        if isinstance(value, BaseModel):
            yield from secrets_in(value)
        for item in value.values() if isinstance(value, dict) else (value,):
            if isinstance(item, SecretStr) and item.get_secret_value():
                yield item.get_secret_value()


def without_secrets(text: str, *models: BaseModel) -> str:
    """Return a text with the secrets of option models put out of sight."""
    for model in models:
        for secret in secrets_in(model):
            text = text.replace(secret, "***")
    return text
