"""Help texts: lines break only where the terminal ends."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import pairwise

import pytest
import typer

from fedquilt_common import cli
from fedquilt_common.command_app import CommandApp, join_lines


def list_commands() -> Iterator[str]:
    """Yield every command, those of groups as well, such as ``simulate`` and ``bench round``."""
    for name, (module, _) in cli.COMMANDS.items():
        yield name
        app = importlib.import_module(module).app
        for group in app.registered_groups if name in cli.GROUPS else ():
            yield from (f"{name} {command}" for command in typer.main.get_group(group.typer_instance).commands)


def shown_paragraphs(printed: str) -> Iterator[list[str]]:
    """Yield the lines of each paragraph below the usage and above the first panel."""
    text = printed.partition("╭")[0].partition("Usage:")[2]
    paragraphs = "\n".join(line.strip() for line in text.splitlines()).strip().split("\n\n")
    return (paragraph.splitlines() for paragraph in paragraphs[1:])


def early_breaks(lines: list[str], width: int) -> list[str]:
    """Return the lines whose next one begins with a word that they have room for. Both margins are one character."""
    return [line for line, below in pairwise(lines) if len(f"{line} {below.split()[0]}") <= width - 2]


@pytest.mark.parametrize("name", sorted(set(list_commands())))
@pytest.mark.parametrize("width", [60, 200])
def test_no_sentence_of_a_help_text_breaks_before_the_line_is_full(
    name: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
    assert cli.run([*name.split(), "--help"]) == 0
    paragraphs = list(shown_paragraphs(capsys.readouterr().out))
    assert paragraphs
    assert max(len(line) for lines in paragraphs for line in lines) <= width - 2
    assert [early for lines in paragraphs for early in early_breaks(lines, width)] == []


def test_the_commands_of_groups_are_among_them() -> None:
    assert {"simulate", "bench", "bench round", "data get", "federation init", "privacy audit"} <= set(list_commands())


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("One\ntwo.\n\nThree\nfour.", "One two.\n\nThree four."),
        ("Words:\n\n- one\n  and more\n- two\n\nAnd\nso on", "Words:\n\n- one\n  and more\n- two\n\nAnd so on"),
        ("Steps:\n1. one\n2. two", "Steps:\n1. one\n2. two"),
        ("For example:\n\n    fedquilt watch \\\n      runs\n", "For example:\n\n    fedquilt watch \\\n      runs\n"),
        ("```\na\nb\n```", "```\na\nb\n```"),
        ("Rounds from 1.\n5 is usual, -1 is not", "Rounds from 1. 5 is usual, -1 is not"),
        ("", ""),
    ],
)
def test_lists_and_code_keep_their_lines(text: str, joined: str) -> None:
    assert join_lines(text) == joined


def test_an_application_can_have_other_options() -> None:
    app = CommandApp(no_args_is_help=False, help="Does\nthis.")

    @app.command("one", help="First\nline.\n\nSecond\nline.")
    def one() -> None:
        """Unused."""

    command = typer.main.get_command(app)
    assert not command.no_args_is_help
    assert command.help == "First line.\n\nSecond line."
