"""The documentation site: `make docs` builds it from docs/, mkdocs.yml and the docstrings, and checks what was built.

* `repository`: files outside of docs/ that pages link to, as pages of the site
* `lists`: lists as repository browsers read them
* `hooks`: both of them, for MkDocs
* `examples`: examples in docstrings as blocks of code; `griffe_examples`: the same for mkdocstrings
* `names`: which public names the API pages must have
* `check`: links, anchors and what would be loaded from elsewhere, in the built pages
* `browser`: Chromium, driven through a pipe
* `screenshots`: pictures of pages, wide and narrow, light and dark
* `quickstart`: runs the program of docs/quickstart.md, and takes the pictures of the page that it writes
"""
