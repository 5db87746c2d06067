"""Links between pages lead somewhere, and every page is reached from README.md."""

import re

import pytest

from tests import ROOT
from tests.docs.links import anchors, broken, links, pages, targets

PAGES = pages(ROOT)
FOLDERS = ("tvm_scan", "schedules", "meta", "tests", "bench")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    assert broken(page, ROOT) == []


def test_every_page_is_reached_from_the_readme():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += [file for _, file, _ in targets(page) if file.suffix == ".md"]
    assert [str(p.relative_to(ROOT)) for p in PAGES if p not in reached] == []


def test_pages_that_code_names_are_there():
    lost = {
        f"{file.relative_to(ROOT)}: {name}"
        for folder in FOLDERS
        for file in (ROOT / folder).glob("**/*.py")
        for name in re.findall(r"\bdocs/[\w/]+\.(?:md|svg)", file.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    }
    assert lost == set()


def test_files_that_pages_name_are_there():
    """A path in a code span that begins with a folder of the repository."""
    named = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w/.]+\.(?:py|md|json|txt|c|cu))`")
    lost = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in named.findall(page.read_text(encoding="utf-8"))
        if not ((ROOT / name).exists() or (ROOT / "tvm_scan" / name).exists())
    }
    assert lost == set()


def test_links_are_read():
    text = (
        '[a](b.md) [`c`](d/e.md#f) ![g](h.svg)\n[i]: j.md\n<img src="k.png">\n'
        "`x[0](no.md)` ``y`[1](no.md)``\n```text\n[l](no.md)\n```\n[m](https://n.org/o.md)\n"
    )
    assert links(text) == ["b.md", "d/e.md#f", "h.svg", "j.md", "k.png", "https://n.org/o.md"]


def test_anchors_are_those_of_github():
    text = (
        "# The `stages` of a plan, on paper\n## A_b: what's\\_new?\n## Twice\n## Twice\n"
        '### [A link](x.md)\n<a id="mine"></a>\n```bash\n# no heading\n```\n'
    )
    assert anchors(text) == {
        "the-stages-of-a-plan-on-paper",
        "a_b-whats_new",
        "twice",
        "twice-1",
        "a-link",
        "mine",
    }


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("there.md", ""),
        ("there.md#a-heading", ""),
        ("#here", ""),
        ("https://example.org/gone.md", ""),
        ("gone.md", "expected a file, found none at docs"),
        ("gone.svg", "expected a file, found none"),
        ("there.md#gone", "expected a heading with the anchor gone"),
        ("#gone", "expected a heading with the anchor gone"),
        ("code.py#L3", "expected a heading with the anchor L3"),
        ("../../outside.md", "expected a file of the repository"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(link, says, tmp_path):
    """The checker itself can fail."""
    docs = tmp_path / "repository" / "docs"
    docs.mkdir(parents=True)
    (tmp_path / "outside.md").write_text("# Outside\n")
    (docs / "there.md").write_text("# A heading\n")
    (docs / "code.py").write_text("\n\n\n")
    page = docs / "page.md"
    page.write_text(f"# Here\n\nSee [this]({link}).\n")
    said = broken(page, docs.parent)
    assert len(said) == bool(says)
    assert not says or says in said[0]
