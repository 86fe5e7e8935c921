"""The labels of ENUM and SET, as information_schema and SHOW CREATE TABLE print them."""

from __future__ import annotations

from collections.abc import Sequence

_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "\\": "\\", "'": "'"}


def labels_of(column_type: str) -> tuple[str, ...]:
    """Parse the labels of ``enum('a','it''s')``.

    The server doubles quotes, and writes NUL, line ends and backslashes with a backslash.

    Source: ``append_unescaped`` of both servers. Empty for another type.
    """
    head, _, text = column_type.partition("(")
    if head.strip().lower() not in {"enum", "set"}:
        return ()
    labels: list[str] = []
    at = 0
    while at < len(text) and text[at] == "'":
        label = []
        at += 1
        while at < len(text):
            pair = text[at : at + 2]
            if pair == "''":
                label.append("'")
                at += 2
            elif pair[0] == "'":
                break
            elif pair[0] == "\\":
                label.append(_ESCAPED.get(pair[1:], pair[1:]))
                at += 2
            else:
                label.append(pair[0])
                at += 1
        labels.append("".join(label))
        at += 2
    return tuple(labels)


def declared(word: str, labels: Sequence[str]) -> str:
    """Return ``enum('a','it''s')`` as the server prints it."""
    return f"{word}({','.join(map(_quoted, labels))})"


def _quoted(label: str) -> str:
    for raw, escaped in (("\\", "\\\\"), ("'", "''"), ("\0", "\\0"), ("\n", "\\n"), ("\r", "\\r")):
        label = label.replace(raw, escaped)
    return f"'{label}'"
