"""What MkDocs calls while it builds the site: pages for files outside of docs/, lists as repository browsers have."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from tools.site import lists, repository


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file outside of docs/ that some page links to."""
    root = _root(config)
    for place in repository.outside(root):
        level = InclusionLevel.INCLUDED if place in repository.PROJECT else InclusionLevel.NOT_IN_NAV
        content = repository.page(place, root)
        files.append(File.generated(config, repository.uri_of(place), content=content, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository to their pages."""
    return lists.spaced(repository.with_links(markdown, repository.place_of(page.file.src_uri), _root(config)))


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent
