"""The limit of open files is raised towards the hard limit, and never lowered."""

from __future__ import annotations

import resource

import pytest

from fedquilt_common.process.file_limit import WANTED_FILES, raise_file_limit

NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "result"),
    [
        (256, 8192, WANTED_FILES),
        (256, NONE, WANTED_FILES),
        (256, 512, 512),
        (512, 512, 512),
        (8192, 8192, 8192),
        (8192, NONE, 8192),
        (NONE, NONE, WANTED_FILES),
    ],
)
def test_limit(soft: int, hard: int, result: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    assert raise_file_limit() == result
    assert limits[-1] == ((soft if soft in (NONE, result) else result), hard)


def test_a_system_with_a_lower_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, NONE))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 256
