"""Runs written for the tests of pages, and what a page has embedded."""

import csv
import html
import io
import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np

from sketchogd.lab.records import RunFolder

HOSTILE = '<script>document.title="broken"</script><img src=x onerror=alert(1)> {{script}} "&'


def matrix(final, learned=0.95):
    """An accuracy matrix whose last row is `final`; every task is learned to `learned` and keeps that until then."""
    T = len(final)
    A = np.full((T, T), np.nan)
    A[np.tril_indices(T)] = learned
    A[-1] = final
    return A


def write_run(root, method, seed, A, *, benchmark="split-mnist", nbytes=1000, events=(), **config):
    folder = RunFolder(root / f"{benchmark}-{method.replace('/', '')[:12]}-{len(list(root.glob('*')))}")
    folder.start({"benchmark": benchmark, "method": method, "seed": seed, "epochs": 30, **config})
    folder.save_accuracy(A)
    for event in events:
        folder.append(event)
    folder.finish(timings={"total": 12.5 + seed}, ledger={"nbytes": nbytes, "entries": []})
    return folder


def evaluations(A, epochs):
    """Evaluations after every epoch, counted from 1, on the tasks seen; the last of a task is the matrix row."""
    for task in range(len(A)):
        for epoch in range(1, epochs + 1):
            row = A[task, : task + 1] * epoch / epochs
            yield {"event": "evaluation", "task": task, "epoch": epoch, "step": 0, "accuracy": row.tolist()}


def methods(root):
    """Three methods on two benchmarks, one with spectra, and a failed run, below the folder `root`."""
    root.mkdir()
    for seed, shift in enumerate((-0.01, 0.0, 0.01)):
        A = matrix(np.array([0.5, 0.5, 0.6, 0.7, 0.95]) + shift)
        write_run(root, "sgd", seed, A, nbytes=0, events=list(evaluations(A, 30)))
        folder = write_run(root, "sketchogd-2", seed, matrix(np.full(5, 0.675) + shift), nbytes=545_328_000)
        s = 10.0 / np.arange(1, 501)
        np.savez(folder.path / "spectra.npz", singular_values=s, stable_rank=np.float64(1.64))
    write_run(root, "layer-sketch", 0, matrix(np.full(5, 0.913)), nbytes=1_050_000)
    write_run(root, "sgd", 0, matrix(np.full(10, 0.79)), benchmark="rotated-mnist", nbytes=0)
    failed = RunFolder(root / "failed")
    failed.start({"benchmark": "split-mnist", "method": "ogd", "seed": 0})
    failed.fail(RuntimeError(HOSTILE))
    return root


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


class _Tables(HTMLParser):
    """The text of every table's cells, by caption; a row hidden from view is there as well."""

    def __init__(self):
        super().__init__()
        self.found, self.rows, self.cell, self.caption = {}, None, None, None

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.rows = []
        elif tag == "caption":
            self.caption = ""
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.cell = ""

    def handle_endtag(self, tag):
        if tag == "caption":
            self.found[self.caption], self.caption = self.rows, None
        elif tag in ("td", "th"):
            self.rows[-1].append(self.cell)
            self.cell = None

    def handle_data(self, text):
        if self.caption is not None:
            self.caption += text
        elif self.cell is not None:
            self.cell += text


def tables(page):
    """The tables of a page: by caption, rows of the text of their cells, the headings first."""
    parser = _Tables()
    parser.feed(page)
    return parser.found


def text(page):
    """What a reader sees of a page: without its style, its scripts and the data in them."""
    return html.unescape(re.sub(r"<[^>]*>", " ", re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)))


def linked(page, name):
    """The content of the CSV file that a link offers, as rows of texts by column."""
    address = re.search(rf'download="{name}" href="data:text/csv;charset=utf-8,([^"]*)"', page)[1]
    return list(csv.DictReader(io.StringIO(unquote(address), newline="")))
