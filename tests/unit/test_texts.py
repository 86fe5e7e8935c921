"""Check that what texts name exists: paths, modules, commands and their options, references in docstrings, kinds of
targets, decisions.
"""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from typer.main import get_command

from sluice.cli import app
from sluice.config.channel import ChannelConfig
from sluice.config.engine import EngineConfig
from sluice.config.pipeline import PipelineConfig
from sluice.config.readers import ReadersConfig
from sluice.errors import ConfigError
from sluice.targets.feature_check import to_ignore
from sluice.targets.registry import KINDS, comparable_kinds, kind_of, marking_kinds

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = sorted(REPOSITORY.joinpath("include/sluice").rglob("*.py"))
PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*.in"), *REPOSITORY.joinpath("docs").rglob("*.md")]
DECISIONS = sorted(REPOSITORY.joinpath("include/sluice").rglob("DECISIONS.md"))
TEXTS = sorted({*(page for page in PAGES if page.suffix == ".md"), *DECISIONS})
FOLDERS = ("dags", "docker", "docs", "include", "plugins", "spark_jobs", "tests")
MADE = (
    "tests/last-full-run.md", "include/targets/", "include/sources/", "include/channels/", "include/formats/",
    "include/rules/changes/", "include/rules/hide_tests.py", "hide_tests.py",
)  # fmt: skip
"""Paths that commands of the pages write, so that they need not be there."""


MODULES = {".".join(path.relative_to(REPOSITORY / "include").with_suffix("").parts): path for path in CODE}
MODULES |= {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def is_defined(name: str) -> bool:
    """Return True if ``name``, such as ``sluice.model.backoff.wait_after``, is a module or is named in the module or
    package it begins with.
    """
    module = name
    while module not in MODULES and "." in module:
        module = module.rpartition(".")[0]
    if module in {"", "sluice"}:
        return False
    path = MODULES[module]
    exported = sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]
    text = "".join(one.read_text() for one in exported)
    return all(
        not part or re.search(rf"\b{re.escape(part)}\b", text)
        for part in name.removeprefix(module).strip(".").split(".")
    )


def test_what_docstrings_refer_to_exists() -> None:
    checked = 0
    for path in CODE:
        for name in re.findall(r":(?:class|func|mod|meth|data|attr):`~?(sluice[\w.]+)`", path.read_text()):
            assert is_defined(name), (path.name, name)
            checked += 1
    assert checked > 40


_REFERENCE = re.compile(r":(?:class|func|mod|meth|data|attr|exc):`~?([\w.]+)`")


@lru_cache
def files_that_define() -> dict[str, list[str]]:
    """Return the texts of the package, without references, by each name that they define at any level: classes,
    functions, values.
    """
    found: dict[str, list[str]] = {}
    for path in CODE:
        text = _REFERENCE.sub("", path.read_text(encoding="utf-8"))
        for name in set(re.findall(r"^\s*(?:class |(?:async )?def )?(\w+)(?= *[(:=\[])", text, re.MULTILINE)):
            found.setdefault(name, []).append(text)
    return found


def is_known_here(name: str, text: str) -> bool:
    """Return True if ``name``, such as ``Session.close``, is in the module ``text``, or its first part defined in one
    that has the rest.
    """
    first, *rest = name.split(".")
    here = _REFERENCE.sub("", text)
    imported = re.search(rf"^\s*import {first}\b", here, re.MULTILINE) is not None
    places = [here] if re.search(rf"\b{first}\b", here) else []
    places += files_that_define().get(first, [])
    return imported or any(all(re.search(rf"\b{part}\b", place) for part in rest) for place in places)


def test_short_references_of_docstrings_exist() -> None:
    missing, checked = [], 0
    for path in CODE:
        text = path.read_text(encoding="utf-8")
        for name in _REFERENCE.findall(text):
            if not name.startswith("sluice."):
                checked += 1
                missing += [(path.relative_to(REPOSITORY).as_posix(), name)] * (not is_known_here(name, text))
    assert missing == []
    assert checked > 300


def test_a_short_reference_that_does_not_exist_is_found() -> None:
    text = '"""See :class:`Gone`, :meth:`Page.turn`."""\nclass Page:\n    def close(self): ...\n'
    assert not is_known_here("Gone_of_old", text)
    assert is_known_here("Page.close", text)
    assert not is_known_here("Page.turned_over_twice", text)


def test_pages_that_messages_name_exist() -> None:
    """Hints send people to ``docs/X.md``, and some to a heading there."""
    checked = 0
    for path in CODE:
        for page, heading in re.findall(r"\b(docs/[\w-]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")):
            example = re.search(r"[A-Z]{4,}|mystore", page) is not None
            assert example or (REPOSITORY / page).exists(), (path.name, page)
            if heading:
                titles = re.findall(r"^#+ (.*)", (REPOSITORY / page).read_text(encoding="utf-8"), re.MULTILINE)
                assert heading in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in titles}, (
                    path.name,
                    page,
                )
            checked += 1
    assert checked > 20


def quoted(page: Path) -> list[str]:
    """Return what stands between backticks on a page, outside of blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(found.split()) for found in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


@lru_cache
def all_paths() -> list[str]:
    """Return every file and folder that a page may name, from the root of the repository."""
    top = [REPOSITORY / folder for folder in FOLDERS]
    return [path.relative_to(REPOSITORY).as_posix() for folder in top for path in (folder, *folder.rglob("*"))]


def path_exists(name: str) -> bool:
    """Return True if a file or folder is called so: from the root, or by the end of its path."""
    name = name.rstrip("/")
    return bool(fnmatch.filter(all_paths(), name) or fnmatch.filter(all_paths(), f"*/{name}"))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_paths_and_modules_that_pages_name_exist(page: Path) -> None:
    for name in quoted(page):
        if re.fullmatch(r"sluice(?:\.\w+)+", name) and f"sluice.{name.split('.')[1]}" in MODULES:
            assert is_defined(name), name
        is_path = re.fullmatch(r"(?:[\w.*-]+/)+[\w.*-]*", name) and name.split("/")[0] in FOLDERS
        if is_path or re.fullmatch(r"(?:[\w-]+/)*\w+\.py", name):
            example = name.startswith(MADE) or "mystore" in name or re.search(r"[A-Z]{4,}", name) is not None
            assert example or path_exists(name), name


def test_a_path_that_does_not_exist_is_found() -> None:
    assert path_exists("docs/README.md")
    assert path_exists("flows/stages.py")
    assert path_exists("targets/*/column_types.py")
    assert not path_exists("flows/room.py")
    assert is_defined("sluice.model.backoff.wait_after")
    assert not is_defined("sluice.model.backoff.wait_before")


def commands(page: Path) -> list[str]:
    """Return the calls of ``sluice`` that a page shows, inline or at a prompt, without ``sluice`` and comments."""
    prompts = re.findall(r"^\$ sluice (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    inline = [name.removeprefix("sluice ") for name in quoted(page) if name.startswith("sluice ")]
    return [re.sub(r"\s+#.*", "", call) for call in [*prompts, *inline]]


@lru_cache
def all_commands() -> Any:
    return get_command(app)


def wrong_word(call: str) -> str:
    """Return the first word of a call that is no command or option of ``sluice``; "" if there is none."""
    known: Any = all_commands()
    words = re.sub(r" \| ", "|", re.sub(r"\"[^\"]*\"|'[^']*'", "TEXT", call)).split()
    while words and hasattr(known, "commands"):
        if words[0] == "--env-file" and known is all_commands():
            del words[:2]
            continue
        if words[0].startswith("--") and known is all_commands():
            break
        alternatives = re.split(r"\\?\|", words[0])
        if all(name in known.commands for name in alternatives):
            known = known.commands[alternatives[-1]]
            del words[0]
        elif "run" in known.commands and known.name:  # a group that has one: `sluice verify PIPELINE`
            known = known.commands["run"]
        else:
            return "" if words[0].startswith(("[", "…", "...")) or words[0].isupper() else words[0]
    named = {name for parameter in known.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    options = [found for word in words for found in re.findall(r"^\[?(--[a-z][a-z-]*)", word)]
    return next((option for option in options if option not in named), "")


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_and_options_that_pages_show_exist(page: Path) -> None:
    assert [(call, wrong_word(call)) for call in commands(page) if wrong_word(call)] == []
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z-]*[a-z])[ `]", page.read_text(encoding="utf-8")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_a_command_that_does_not_exist_is_found() -> None:
    assert wrong_word("dump status shop") == "status"
    assert wrong_word("dump start shop --tables a") == "--tables"
    assert wrong_word("dump list|show shop --json") == ""
    assert wrong_word("verify shop --repair") == ""


def keys_of(kind: Any, known: set[Any] | None = None) -> set[str]:
    """Return the keys that a pydantic model reads from a file, with those of the models in it."""
    known = set() if known is None else known
    found: set[str] = set()
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in known:
        known.add(kind)
        for name, field in kind.model_fields.items():
            found |= {field.alias or name} | keys_of(field.annotation, known)
    for part in get_args(kind):
        found |= keys_of(part, known)
    return found


@pytest.mark.parametrize("kind", [PipelineConfig, EngineConfig, ChannelConfig, ReadersConfig])
def test_every_key_of_a_file_is_on_a_page(kind: type[BaseModel]) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in TEXTS if page.name != "CHANGELOG.md")
    assert {name for name in keys_of(kind) if not re.search(rf"\b{re.escape(name)}(?::|`)", text)} == set()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_option_of_a_kind_is_on_its_page(kind: str) -> None:
    page = REPOSITORY / f"docs/{kind}-target.md"
    if not page.exists():
        assert kind == "memory"
        return
    text = page.read_text(encoding="utf-8")
    options = keys_of(kind_of(kind).load().Options)
    assert options
    assert {name for name in options if not re.search(rf"[`{{ ]{re.escape(name)}(?::|`)", text)} == set()


PARTS = ("Date", "Context", "Decision", "Consequences", "Measured", "A change violates this if")


def decisions() -> dict[str, tuple[Path, str]]:
    """Return each decision by its title: its page, and its text."""
    found = {}
    for page, mark in [(REPOSITORY / "docs/decisions.md", "###"), *((page, "##") for page in DECISIONS)]:
        for part in re.split(rf"^{mark} ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            title, _, text = part.partition("\n")
            found[title] = (page, re.split(r"^#+ ", text, flags=re.MULTILINE)[0])
    return found


@pytest.mark.parametrize("title", decisions())
def test_decisions_have_one_form_and_one_index(title: str) -> None:
    page, text = decisions()[title]
    named = re.findall(r"^- \*\*(.*?)\*\*", text, re.MULTILINE)
    assert named in ([part for part in PARTS if part != "Measured"], list(PARTS))
    assert re.search(r"^- \*\*Date\*\*: \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    link = "" if page.name == "decisions.md" else f"../{page.relative_to(REPOSITORY)}"
    assert f"| [{title}]({link}#" in (REPOSITORY / "docs/decisions.md").read_text(encoding="utf-8")


def test_kinds_that_mark_loads_are_those_that_the_file_names() -> None:
    """The configuration cannot ask the registry, which is above it."""
    described = PipelineConfig.model_fields["mark"].description or ""
    assert f"targets of type {', '.join(marking_kinds())}, " in described


def test_kinds_that_can_be_verified_come_from_the_registry() -> None:
    assert {"mysql", "postgresql", "delta", "iceberg", "kafka"} <= set(comparable_kinds())
    for kind in KINDS:
        if (REPOSITORY / f"docs/{kind}-target.md").exists():
            assert f"{kind}-target.md" in (REPOSITORY / "docs/own-target.md").read_text()


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (
            "`sluice seek PIPELINE latest`, then `sluice dump start PIPELINE`",
            "`sluice seek shop latest`, then `sluice dump start shop`",
        ),
        ("name the PIPELINE", "name the PIPELINE"),
        ("`sluice skip PIPELINE TARGET BATCH`", "`sluice skip shop TARGET BATCH`"),
    ],
)
def test_a_hint_says_the_name_of_the_pipeline(hint: str, said: str) -> None:
    error = ConfigError("no", hint=hint)
    error.name_pipeline("shop")
    assert error.hint == said
    bare = ConfigError("no")
    bare.name_pipeline("shop")
    assert bare.hint is None


def test_the_snapshot_has_no_ddl_to_set() -> None:
    assert "ddl" not in to_ignore("snapshot", "drop_table")
    assert "set drop_table to ignore in the ddl of target copy" in to_ignore("copy", "drop_table")
