"""Which values must never be shown: in plans, journals, reports and messages."""

from __future__ import annotations

import re
from typing import Final

REDACTED: Final = "<redacted>"

_SECRET_NAMES: Final = re.compile(
    r"KEY|TOKEN(?!IZERS)|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|COOKIE|DSN|PRIVATE", re.IGNORECASE
)


def looks_secret(name: str) -> bool:
    """Tell whether a variable of this name is likely to hold a secret that must not be shown."""
    return _SECRET_NAMES.search(name) is not None


def shown(name: str, value: str) -> str:
    """Return `value`, or `REDACTED` where the name of its variable looks secret."""
    return REDACTED if value and looks_secret(name) else value
