"""Files for readers of the repository that name the same facts as the code."""

from __future__ import annotations

from pathlib import Path

import yaml

from fedquilt_common import __version__

ROOT = Path(__file__).parents[2]


def test_the_citation_is_of_this_version_and_names_the_five_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["cff-version"], citation["version"], citation["license"]) == ("1.2.0", __version__, "Apache-2.0")
    assert len(citation["references"]) == 5
    assert all(paper["title"] and paper["authors"] for paper in citation["references"])
