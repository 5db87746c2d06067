"""The code of the torch pages runs, each page in one namespace from top to bottom."""

import pytest

from tests import ROOT

pytest.importorskip("torch")

from tests.docs.test_pages import blocks_of

DOCS = ROOT / "docs"
PAGES = [DOCS / "torch.md", *sorted((DOCS / "torch").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TVM_SCAN_RECORDS", "off")  # a page sets it
    namespace = {"__name__": "__page__"}
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.language == "python" and block.wish != "skip":
            code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
            exec(code, namespace)
