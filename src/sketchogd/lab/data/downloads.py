"""Fetching one published file over HTTPS: bounded in bytes and in time, and kept only if its checksum is right."""

import http.client
import time
import urllib.request
from pathlib import Path

from sketchogd.lab.data import sources
from sketchogd.lab.data.fileformats import DataError
from sketchogd.storage import atomic

PAUSE = 60
"""Seconds without a byte after which the network has failed."""
SECONDS = 3600
"""Seconds that one file may take, however slowly it comes."""
CHUNK = 1 << 16


def fetch(published: sources.Published, path: Path) -> None:
    """Write a published file to `path`, whole and with the right checksum, or not at all.

    Raises:
        DataError: it was cut off, is too large, took too long, or has another checksum.
        OSError: the network or the disk failed.
    """
    request = urllib.request.Request(published.url, headers={"User-Agent": "sketchogd"})
    with urllib.request.urlopen(request, timeout=PAUSE) as response:
        promised = response.headers.get("Content-Length", "")
        data = _read(response, published)
    if promised.isdigit() and len(data) < int(promised):
        raise DataError(f"{published.url} was cut off after {len(data):,} of {int(promised):,} bytes; try again")
    if not published.admits(data):
        raise DataError(f"{published.url} came with another checksum than the published one; nothing was kept")
    atomic.write_bytes(path, data)


def _read(response: http.client.HTTPResponse, published: sources.Published) -> bytes:
    """The body, as it comes."""
    data, end = bytearray(), time.monotonic() + SECONDS
    try:
        while piece := response.read1(CHUNK):  # what has come, where read would wait for a whole chunk
            data += piece
            if len(data) > published.limit:
                raise DataError(f"{published.url} sends more than the {published.limit:,} bytes that the file can have")
            if time.monotonic() > end:
                raise DataError(
                    f"{published.url} sent {len(data):,} bytes in {SECONDS} s, which is too slow; try again"
                )
    except http.client.HTTPException as error:
        raise DataError(f"{published.url} was cut off after {len(data):,} bytes ({error!r}); try again") from error
    return bytes(data)
