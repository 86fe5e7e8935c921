"""What the site has besides the pages of docs/: the nav, files of the repository that pages link to, and all errors.

The nav is read from the tables of docs/README.md. A link that leaves docs/ goes to a copy of its file below
``repository/``. ``errors.md`` gets the texts that the code raises, each with its hint, below the name of their class.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "include" / "sluice"
COPIES = "repository"
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
LINK = re.compile(r"(\]\()((?!https?:|mailto:|#)[^)#\s]+)((?:#[^)\s]*)?(?: \"[^\"]*\")?\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read the nav from the index of the pages, and the version from the package."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    nav: list[Any] = [{"Start": ["README.md", "how-it-works.md", "why-sluice.md", "words.md"]}]
    for title, chapter in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL):
        pages = dict.fromkeys(re.findall(r"\]\(([a-z-]+\.md)", chapter))
        files = re.findall(r"\]\(\.\./([A-Z_]+\.md)\)", chapter)
        nav.append({title: [*pages, *(f"{COPIES}/{name}" for name in files)]})
    config.nav = nav
    version = re.search(r'__version__ = "(.+?)"', (PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    assert version is not None
    config.site_name = f"Sluice {version[1]}"
    config.site_dir = f"{config.site_dir}/{version[1]}"
    config.extra["version"] = {"provider": "mike"}  # the theme reads versions.json beside the folders
    return config


def on_post_build(config: MkDocsConfig) -> None:
    """List the versions whose folders are there, the newest first, and lead from the top to the newest."""
    top = Path(config.site_dir).parent
    versions = sorted((path.parent.name for path in top.glob("*/index.html")), key=_order, reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (top / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    (top / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={versions[0]}/">\n', encoding="utf-8")


def _order(version: str) -> list[tuple[bool, int, str]]:
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in version.split(".")]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that pages link to."""
    for name in sorted(_linked({ROOT / "docs" / file.src_uri for file in files.documentation_pages()})):
        files.append(File.generated(config, f"{COPIES}/{name}", abs_src_path=str(ROOT / name)))
    return files


def _linked(pages: set[Path]) -> set[str]:
    """Return the files outside of docs/ that ``pages`` and the pages at the top link to."""
    found: set[str] = set(TOP)
    for page in (*pages, *(ROOT / name for name in TOP)):
        for _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            if path.is_file() and path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "docs"):
                found.add(path.relative_to(ROOT).as_posix())
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that leave docs/ go to the copies, and links of the copies into docs/ go to the pages."""
    del config
    source = page.file.src_uri
    if source == "errors.md":
        return with_texts(markdown)
    home = ROOT / source.removeprefix(f"{COPIES}/") if source.startswith(f"{COPIES}/") else ROOT / "docs" / source
    up = "../" * source.count("/")

    def moved(match: re.Match[str]) -> str:
        path = (home.parent / match[2]).resolve()
        if not path.is_relative_to(ROOT):
            return match[0]
        name = path.relative_to(ROOT).as_posix()
        place = name.removeprefix("docs/") if name.startswith("docs/") else f"{COPIES}/{name}"
        if files.get_file_from_path(place) is None:  # a folder
            return match[0]
        return f"{match[1]}{up}{place}{match[3]}"

    return _pictures(LINK.sub(moved, markdown), home, up)


def _pictures(markdown: str, home: Path, up: str) -> str:
    """Let pictures in HTML go to the files of docs/."""
    if home.parent != ROOT:
        return markdown
    return re.sub(r'(src(?:set)?=")docs/', rf"\g<1>{up}", markdown)


# -- errors ------------------------------------------------------------------------------------------------------------


def with_texts(page: str) -> str:
    """Return the page of errors with the texts that the code raises below the line of their class."""
    texts: dict[str, set[tuple[str, str]]] = {name: set() for name in re.findall(r"`sluice\.errors\.(\w+)`", page)}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, text, hint in _raised(path, texts):
            texts[name].add((text, hint))

    def listed(match: re.Match[str]) -> str:
        lines = [f"- {text}" + (f" → {hint}" if hint else "") for text, hint in sorted(texts[match[1]])]
        return match[0] + ("\n\nIts texts, with `…` for a value:\n\n" + "\n".join(lines) if lines else "")

    return re.sub(r"^- `sluice\.errors\.(\w+)`: .*$", listed, page, flags=re.MULTILINE)


def _raised(path: Path, classes: Collection[str]) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes and node.args:
            text = _text(node.args[0])
            hint = next((_text(keyword.value) for keyword in node.keywords if keyword.arg == "hint"), "")
            if len(text.replace("…", "")) > 10:
                yield node.func.id, text, hint


def _text(node: ast.expr) -> str:
    """Return a text of the code with ``…`` for each value."""
    match node:
        case ast.Constant(value=str(value)):
            return _plain(value)
        case ast.JoinedStr(values=parts):
            return re.sub(r"…+", "…", "".join(_text(part) for part in parts))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _text(left) + _text(right)
        case _:
            return "…"


def _plain(text: str) -> str:
    """Return the text for a list in Markdown: roles of docstrings as code, and no HTML."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))
    return (
        text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
        if "`" not in text
        else text.replace("<", "&lt;")
    )
