"""Texts with a few pieces put in, taken out, repeated or replaced, and now and then a byte that belongs to no text."""

from __future__ import annotations

import os
import random

COUNT = int(os.environ.get("SLUICE_TEST_FUZZ", "300"))
"""Mutations of each kind: a few hundred by default, ``SLUICE_TEST_FUZZ=10000`` for the whole proof."""
SLOW = COUNT if COUNT > 1000 else COUNT // 3
"""Of the kinds that take longest."""
SEED = os.environ.get("SLUICE_TEST_FUZZ_SEED", "1")
"""Another one walks elsewhere."""

PIECES = [
    "",
    " ",
    "\n",
    "\t",
    "\r\n",
    "0",
    "-1",
    "1e999",
    ".nan",
    ".inf",
    "9" * 30,
    "9" * 5000,
    "1.5",
    "true",
    "null",
    "~",
    "[]",
    "{}",
    "[",
    "]",
    "{",
    "}",
    ":",
    ": ",
    "- ",
    "*a",
    "&a ",
    "&a [*a]",
    "<<: *a",
    "!!int ",
    "!!binary ",
    "!!python/name:os.system ",
    "!x ",
    "|",
    ">",
    "? ",
    "#",
    "%YAML 9.9\n",
    "---\n",
    "...",
    "'",
    '"',
    "\\",
    "\\x1b",
    '"\\ud800"',
    "\x00",
    "\x1b[2J",
    "\x85",
    "\ufeff",
    "é",
    "日本",
    "\u202e",
    "(",
    ")",
    "(?P<",
    "(?=",
    "a{99999999999}",
    "[a-",
    "\\9",
    "\\g<x>",
    "..",
    "/",
    "../../x",
    "latest",
    "snapshot",
    "dump",
    "500ms",
    "99999999999d",
    "512MiB",
    "-5s",
    "1 fortnight",
    "s3://k:secret@b/p",
    "a" * 3000,
    "/*!50000 x */",
    ";",
    "--",
    "@@a",
    "SLEEP(1)",
    "(SELECT 1)",
    "import sys; sys.exit(1)\n",
    "raise BaseException\n",
    "print('x')\n",
    "    ",
    "def transform",
    "return",
    "{{ x }}",
    "$b",
]


def mutated(choose: random.Random, text: str) -> bytes:
    data = text
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(data) + 1)
        kind = choose.random()
        if kind < 0.45:
            end = at + choose.choice([0, 0, 1, 2, 5])
            data = data[:at] + choose.choice(PIECES) + data[end:]
        elif kind < 0.65:
            start = choose.randrange(len(data) + 1)
            data = data[:at] + data[start : start + choose.randint(1, 60)] + data[at:]
        elif kind < 0.8:
            data = data[:at] + data[at + choose.randint(1, 40) :]
        else:
            lines = data.split("\n")
            line = choose.randrange(len(lines))
            head, colon, value = lines[line].partition(": ")
            lines[line] = f"{head}{colon}{choose.choice(PIECES)}" if value else lines[line] * 2
            data = "\n".join(lines)
    made = data.encode("utf-8", "surrogatepass")
    if choose.random() < 0.1 and made:
        at = choose.randrange(len(made))
        made = made[:at] + bytes([choose.randrange(256)]) + made[at + 1 :]
    return made
