"""Links of Markdown pages: targets in the repository, and the anchors of headings on GitHub."""

import re
from pathlib import Path
from urllib.parse import unquote

__all__ = ["anchors", "broken", "links", "pages", "targets"]

_FENCE = re.compile(r"^[ ]*(```+|~~~+)[^\n]*\n.*?^[ ]*\1[ ]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(
    r"\]\(\s*<?(?P<inline>[^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)"
    r"|^[ ]{0,3}\[[^\]\n]+\]:\s*<?(?P<reference>[^>\s]+)"
    r"|(?:href|src)=\"(?P<html>[^\"]+)\"",
    re.MULTILINE,
)
_HEADING = re.compile(r"^[ ]{0,3}#{1,6}[ ]+(.*?)[ ]*#*[ ]*$", re.MULTILINE)
_NAMED = re.compile(r"<a\s[^>]*(?:id|name)=\"([^\"]+)\"")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def pages(root: Path) -> list[Path]:
    """Every Markdown file below a folder, but for those in hidden folders and builds."""
    return sorted(
        page
        for page in root.glob("**/*.md")
        if not any(part.startswith(".") or part == "build" for part in page.relative_to(root).parts)
    )


def links(text: str) -> list[str]:
    """Targets of the links and pictures of a page, as written; code has none."""
    prose = _CODE.sub("`code`", _FENCE.sub("", text))
    return [next(filter(None, match.groups())) for match in _LINK.finditer(prose)]


def anchors(text: str) -> set[str]:
    """Names to which ``#name`` can point: one for each heading, and those given in HTML."""
    prose = _FENCE.sub("", text)
    names, seen = set(_NAMED.findall(prose)), dict[str, int]()
    for heading in _HEADING.findall(prose):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.replace("\\_", "_").lower()).replace(" ", "-")
        number = seen.get(name, 0)
        seen[name] = number + 1
        names.add(f"{name}-{number}" if number else name)
    return names


def targets(page: Path) -> list[tuple[str, Path, str]]:
    """Each link into the repository: as written, the file it means, and the anchor or ""."""
    out = []
    for link in links(page.read_text(encoding="utf-8")):
        if not _ELSEWHERE.match(link):
            path, _, anchor = link.partition("#")
            out.append((link, (page.parent / unquote(path)).resolve() if path else page, anchor))
    return out


def broken(page: Path, root: Path) -> list[str]:
    """One sentence for each link of a page that leads nowhere.

    Parameters
    ----------
    page : Path
        A Markdown file.
    root : Path
        The repository, which links must not leave.
    """
    out = []
    for link, file, anchor in targets(page):
        if not file.is_relative_to(root.resolve()):
            out.append(f"{link}: expected a file of the repository, found {file}")
        elif not file.exists():
            out.append(f"{link}: expected a file, found none at {file.relative_to(root.resolve())}")
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file.read_text("utf-8"))):
            out.append(f"{link}: expected a heading with the anchor {anchor}, found none")
    return out
