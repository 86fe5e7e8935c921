"""What data holds for a terminal does nothing to it; who cannot be asked is told so."""

from __future__ import annotations

import io
import json

import pytest
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import SafeConsole, _linked, ask, json_shown, print_error, visible
from sluice.errors import ConfigError

EVIL = [
    "\x1b[2J\x1b]0;title\x07", "\x9b31m", "a\rb", "a\bb", "\u202egnp.exe", "\u2066x\u2069", "\u200b", "\x00",
    "\x7f", "\ud800", "\ufeff", "\U000e0041",
    "\u2028", "\x0b\x0c", "[red]x[/red]", "[link=http://x]y[/link]", "x\\", "[/]",
]  # fmt: skip
BAD = [
    chr(c)
    for c in (
        *range(9),
        *range(11, 32),
        *range(127, 160),
        0x202E,
        0x2066,
        0x2069,
        0x200B,
        0xD800,
        0xFEFF,
        0xE0041,
        0x2028,
    )
]


@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
@pytest.mark.parametrize("terminal", [True, False])
def test_a_console_shows_and_does_not_obey(text: str, terminal: bool) -> None:
    made = io.StringIO()
    screen = SafeConsole(file=made, force_terminal=terminal, color_system=None, width=120)
    table = Table(title=escape(text), box=None)
    table.add_column(escape(text))
    table.add_row(escape(text))
    screen.print(table)
    screen.print(f"x {escape(text)} y", highlight=False)
    said = made.getvalue()
    assert not [c for c in BAD if c in said]
    if "[" in text and "\x1b" not in text:
        assert text in said
    assert "\x1b" not in visible(text)


@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
def test_json_stays_the_same_document(text: str) -> None:
    line = json_shown(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(line) == json.loads(json.dumps({text: [text]}))
    assert not [c for c in BAD if c in line]
    line.encode()


def test_an_error_is_shown_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ConfigError("a\x1b[2Jb", where="\u202ex", hint="[red]\x9b"))
    said = capsys.readouterr().err
    assert "[red]" in said
    assert "[SLUICE-CONFIG-ERROR]" in said
    assert not [c for c in BAD if c in said.replace("\x1b[", "")]


@pytest.mark.parametrize("site", ["https://docs.example/0.3.0/", "javascript:alert(1)", ""])
def test_pages_that_an_error_names_are_links_where_the_site_is_known(
    site: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_DOCS", site)
    hint = "docs/recover.md#lost has [all]"
    print_error(ConfigError("a", hint=hint))
    printed = capsys.readouterr().err
    assert hint in printed
    assert ("https://docs.example/0.3.0/errors.html#sluice-config-error" in printed) is site.startswith("https")
    link = "[link=https://docs.example/0.3.0/recover.html#lost]docs/recover.md#lost[/link]" + escape(" has [all]")
    assert _linked(hint) == (link if site.startswith("https") else escape(hint))
    assert "javascript" not in printed


def test_without_a_terminal_there_is_nobody_to_ask() -> None:
    with pytest.raises(ConfigError, match="no terminal to ask on") as caught:
        ask("Do it?")
    assert "--yes" in (caught.value.hint or "")
