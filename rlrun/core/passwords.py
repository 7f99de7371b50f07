"""Keeps passwords in addresses, such as MLflow's postgresql://me:secret@host/db, out of everything that is written."""

from __future__ import annotations

import os
import re
from typing import Any

from rlrun.core.errors import UserError

HIDDEN = "***"
WHOLE = "RLRUN_MLFLOW_URI"  # the environment variable with the whole address, which jobs inherit
_USER = re.compile(r"://[^\s'\"]*@")  # up to the last @ of a word, because a password may contain / and @
_QUERY = re.compile(r"(://[^\s'\"?]*\?)([^\s'\"]+)")
_PLAIN = ("sslmode", "charset", "connect_timeout")  # values of a query that are no secrets


def masked(text: str) -> str:
    """Returns the text with *** in place of users, passwords and secrets in its addresses."""

    def query(found: re.Match) -> str:
        pairs = (pair.partition("=") for pair in found[2].split("&"))
        return found[1] + "&".join(f"{name}={value if name in _PLAIN else HIDDEN}" for name, _, value in pairs)

    return _QUERY.sub(query, _USER.sub(f"://{HIDDEN}@", text))


def masked_values(values: Any) -> Any:
    """Returns a config, or any part of one, without passwords."""
    if isinstance(values, dict):
        return {name: masked_values(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [masked_values(value) for value in values]
    return masked(values) if isinstance(values, str) else values


def whole(uri: str | None) -> str | None:
    """Returns MLflow's address with its password, which was given in this process or in RLRUN_MLFLOW_URI.

    For an http server, MLFLOW_TRACKING_PASSWORD is enough. Raises UserError if the password is not known any more."""
    if uri is None:
        return None
    if HIDDEN not in uri:
        if masked(uri) != uri:
            os.environ[WHOLE] = uri  # for jobs that this process starts, and for its own run directories
        return uri
    given = os.environ.get(WHOLE)
    if given is not None and masked(given) == uri:
        return given
    if uri.startswith("http") and "MLFLOW_TRACKING_PASSWORD" in os.environ:
        return re.sub(r"://[^/\s]*@", "://", uri)
    raise UserError(
        f"logger.mlflow.uri={uri}: rlrun saves no passwords, so give this one again, with logger.mlflow.uri= or"
        f" in the environment variable {WHOLE}; logger.mlflow.enabled=false does without MLflow"
    )


def check_logger(values: dict[str, Any]) -> None:
    """Raises UserError if a config logs to an MLflow store whose password is not known."""
    mlflow = (values.get("logger") or {}).get("mlflow") or {}
    if mlflow.get("enabled"):
        whole(mlflow.get("uri"))
