"""Takes the documents of the repository's root into the site, and points links at where they are there."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {"ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each document."""
    for document, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to documents of the root, and theirs into `docs/`."""
    for document, name in PAGES.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{document}", f"]({name}", markdown)
    return markdown.replace("](docs/", "](").replace("](README.md", "](index.md")
