"""Digests of configs, by which runs are told apart. The preset, the experiment that a run was made for, is no part of
them, because no number of the run depends on it; digests written by earlier versions include it.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of the config without its preset, as canonical JSON: equal for equal configs, in any order of keys."""
    return _digest({key: value for key, value in config.items() if key != "preset"})


def identity(config: Mapping[str, Any]) -> tuple[str, str]:
    """Digest and preset of a config: a report of several experiments lists a run once for each of them."""
    return config_digest(config), config.get("preset", "")


def intact(record: Mapping[str, Any]) -> bool:
    """Whether the digest of a record is that of its config, without its preset or, as in old records, with it."""
    return record["digest"] in (config_digest(record["config"]), _digest(record["config"]))


def _digest(config: Mapping[str, Any]) -> str:
    text = json.dumps(dict(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
