"""Hooks of mkdocs: add pages from outside docs/ and the list of decisions to the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = {
    "CONTRIBUTING.md": "contributing.md",
    **{f"benchmarks/results/{path.name}": f"benchmarks/{path.name}" for path in ROOT.glob("benchmarks/results/*")},
}
"""Files of the repository that pages link to -> their place on the site."""
DECISIONS: Final = "adr/index.md"
_LINK: Final = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(?=\))")
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the decisions into the navigation, in the order of their numbers."""
    pages = [DECISIONS, *(f"adr/{path.name}" for path in _decisions())]
    config.nav = [{"Decisions": pages} if entry == {"Decisions": "adr/"} else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files from outside docs/, and a page that lists the decisions."""
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, DECISIONS, content=list_decisions()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to places on the site."""
    home = next((source for source, place in OUTSIDE.items() if place == page.file.src_uri), None)
    return move_links(markdown, home or f"docs/{page.file.src_uri}", page.file.src_uri)


def move_links(markdown: str, source: str, place: str) -> str:
    """Rewrite relative links outside code blocks.

    Args:
        markdown: the text of a page.
        source: the page's path in the repository, to which its links are relative.
        place: its path on the site.
    """

    def move_link(link: Any) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        new_target = DECISIONS if target == "docs/adr" else OUTSIDE.get(target, target.removeprefix("docs/"))
        return f"{link[1]}{posixpath.relpath(new_target, posixpath.dirname(place) or '.')}{link[3] or ''}"

    parts = re.split(f"({_FENCE.pattern})", markdown, flags=_FENCE.flags)
    return "".join(part if part.startswith("```") else _LINK.sub(move_link, part) for part in parts)


def list_decisions() -> str:
    """Return the page that lists the decisions."""
    rows = [f"- [{_title(path)}]({path.name})" for path in _decisions()]
    intro = "Why fedquilt is as it is: context, decision and consequences."
    return "\n".join(["# Decisions", "", intro, "", *rows, ""])


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
