"""Temporary folders for what Trainers write, and no telemetry of theirs."""

import pytest

collect_ignore = ["ava.py", "bert.py", "fsdp.py", "lit.py"]  # these import what may not be installed


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
