"""The report page: its template, style and scripts beside this file, and the function that assembles them.

Data from records reaches the page as JSON only, and its scripts show it as text, never as markup. The page's content
security policy admits nothing from outside, and no script but this one.
"""

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

SCRIPTS = ("dom.js", "tables.js", "charts.js", "figures.js", "page.js")


def render(title: str, data: dict[str, Any]) -> str:
    """One self-contained HTML page that shows `data`, the tree of `report.page_data`."""
    assets = resources.files(__package__)
    source = data["reference"]["source"]
    beside = f"Our runs are shown beside {source}, together with" if source else "The tables also show"
    script = "\n".join(assets.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    parts = {
        "title": html.escape(title),
        "beside": html.escape(beside),
        "style": assets.joinpath("page.css").read_text(encoding="utf-8"),
        "script": script,
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        # Inside a script element only "<" could end the data; a JSON parser reads the escape back.
        "data": json.dumps({"title": title, **data}, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    template = assets.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
