"""A quick part of the campaign, and that it sees what it is for."""

import json
import os
import signal
import sys
import time

import pytest

import sketchogd as so
from tools.campaign import page
from tools.campaign.__main__ import QUICK, campaign
from tools.campaign.attempts import refused_or
from tools.campaign.children import BAD, attempts
from tools.campaign.subjects import MEMORIES, Subject

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


@pytest.mark.parametrize("part", ["files damaged", "files forged", "faults of files"])
def test_a_quick_part_ends_without_anything_bad(part):
    found = campaign(QUICK, 17, [part])["parts"][part]
    assert found["attempts"] >= 30
    assert found["refused"] > 0
    assert {kind: found[kind] for kind in BAD} == dict.fromkeys(BAD, 0), found["first bad"]


def test_killed_saves_are_whole():
    found = campaign({**QUICK, "kills": 30}, 17, ["kills while saving"])["parts"]["kills while saving"]
    assert {kind: found[kind] for kind in BAD} == dict.fromkeys(BAD, 0), found["first bad"]


def test_a_crash_and_a_hang_are_counted_and_the_rest_is_done(monkeypatch):
    monkeypatch.setattr("tools.campaign.children.LIMIT", 1.0)

    def make():
        def attempt(i):
            if i == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if i == 3:
                time.sleep(30)
            return "refused"

        return attempt

    found = attempts(make, 6)
    assert dict(found.counts) == {"refused": 4, "crash": 1, "hang": 1}


def test_a_changed_state_and_an_unclear_error_are_seen():
    subject = Subject("layers", every=3, seed=5)

    def change():
        subject.protection.settle()
        raise so.StorageError("refused")

    assert refused_or(subject, change).startswith("changed: pending, weight")
    assert refused_or(Subject("product"), lambda: {}["a"]).startswith("unclear: KeyError")
    assert refused_or(Subject("product"), lambda: None) is None


def test_every_kind_of_sketch_is_attacked():
    seen = {type(sketch).name for name in MEMORIES for _, sketch in Subject(name).protection.memory.sketches()}
    assert seen == set(so.sketch.REGISTRY)


def test_the_counts_on_the_page_are_those_that_are_kept():
    text = page.PAGE.read_text(encoding="utf-8")
    found = json.loads(page.COUNTS.read_text(encoding="utf-8"))
    assert page.counts(found) in text
    assert not any(part[kind] for part in found["parts"].values() for kind in BAD)
