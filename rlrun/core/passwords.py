"""Keeps passwords in addresses, such as MLflow's postgresql://me:secret@host/db, out of everything that is written."""

from __future__ import annotations

import os
import re
from importlib.metadata import entry_points
from typing import Any

from rlrun.core.errors import UserError, closest

HIDDEN = "***"
WHOLE = "RLRUN_MLFLOW_URI"  # the environment variable with the whole address, which jobs inherit
_USER = re.compile(r"://[^\s'\"]*@")  # up to the last @ of a word, because a password may contain / and @
_AROUND = re.compile(r"://.*@", re.DOTALL)  # the same of a whole address, in which nothing ends the password
_QUERY = re.compile(r"(://[^\s'\"?]*\?)([^\s'\"]+)")
_PLAIN = ("sslmode", "charset", "connect_timeout")  # values of a query that are no secrets
# Names of a query whose values are secrets, in addresses that are not MLflow's.
_SECRET = re.compile(r"pass|pwd|secret|token|key|sig|auth|cred", re.IGNORECASE)
_URI = "logger.mlflow.uri="
_LOST = re.compile(r"://\*\*\*@|[?&][^=\s]*=\*\*\*")


def masked(text: str, mlflow: bool = True) -> str:
    """Returns the text with *** in place of users, passwords and secrets in its addresses.

    mlflow: whether any value of an address' query counts as a secret, as in MLflow's; otherwise its name decides,
    because what other options say must stay as it is, as in http://host/game?level=3."""

    def plain(name: str) -> bool:
        return name in _PLAIN if mlflow else not _SECRET.search(name)

    def query(found: re.Match) -> str:
        pairs = (pair.partition("=") for pair in found[2].split("&"))
        return found[1] + "&".join(f"{name}{eq}{value if plain(name) else HIDDEN}" for name, eq, value in pairs)

    return _QUERY.sub(query, _USER.sub(f"://{HIDDEN}@", text))


def masked_values(values: Any, name: str = "") -> Any:
    """Returns a config, or any part of one, without passwords. name: that of the option that has these values."""
    if isinstance(values, dict):
        return {name: masked_values(value, name) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [masked_values(value, name) for value in values]
    if name == "uri" and isinstance(values, str):
        values = _AROUND.sub(f"://{HIDDEN}@", values)
    return masked(values, name == "uri" or _URI in values) if isinstance(values, str) else values


def check_known(values: Any, where: str, name: str = "") -> None:
    """Raises UserError if a saved config, or a part of one, lacks a password that is not MLflow's, which whole() finds.

    where: the file, for the message."""
    if isinstance(values, dict):
        for key, value in values.items():
            check_known(value, where, f"{name}.{key}".lstrip("."))
    elif isinstance(values, list | tuple):
        for value in values:
            check_known(value, where, name)
    elif isinstance(values, str) and _LOST.search(values) and name != _URI[:-1] and _URI not in values:
        raise UserError(
            f"{name or values} had a password or a secret in its address. rlrun does not save it, so nothing can be run"
            f" from {where}: let your own code read it from an environment variable"
        )


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


# What MLflow keeps runs in; packages can add others.
STORES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks", "databricks-uc", "uc")


def check_logger(values: dict[str, Any]) -> None:
    """Raises UserError if a config logs to something that is no MLflow store, or to one whose password is unknown or
    cannot be found in texts."""
    mlflow = (values.get("logger") or {}).get("mlflow") or {}
    uri = mlflow.get("uri")
    if isinstance(uri, str) and ":" not in uri and not uri.startswith("databricks"):
        raise UserError(
            f"logger.mlflow.uri={uri} is no address of an MLflow store, such as http://HOST:5000 or"
            " sqlite:////FOLDER/mlflow.db"
        )
    kind = uri.partition(":")[0].partition("+")[0].lower() if isinstance(uri, str) else "file"
    if kind not in STORES and kind not in {one.name for one in entry_points(group="mlflow.tracking_store")}:
        raise UserError(
            f"logger.mlflow.uri={masked(str(uri))}: MLflow has no store of the kind {kind}.{closest(kind, STORES)}"
            f" It has {', '.join(STORES)}"
        )
    if isinstance(uri, str) and (user := _AROUND.search(uri)) and re.search(r"[\s'\"]", user[0]):
        raise UserError(
            "the user or the password in logger.mlflow.uri has a quote or a blank, so that rlrun could not keep it out"
            " of what it writes: write %27 for ', %22 for \" and %20 for a blank"
        )
    if mlflow.get("enabled"):
        whole(mlflow.get("uri"))
