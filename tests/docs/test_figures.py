"""Pages with measured figures say at their head where they are older than the code."""

import json

import pytest

pytest.importorskip("torch")  # some of the loops that were tuned are those of its functions

from bench import older
from bench.printed import PAGES, printed

RESULTS = {name: json.loads((older.RESULTS / name).read_text()) for name in older.pages()}


def test_pages_whose_plans_are_not_todays_say_so():
    wanted: dict[str, list[str]] = {}
    for name, shown in older.pages().items():
        for page in shown:
            wanted.setdefault(page, []).extend(older.differing(name, RESULTS[name]))
    for page, rows in wanted.items():
        text = (older.ROOT / page).read_text(encoding="utf-8")
        assert text == older.with_note(text, bool(rows)), (
            f"{page}: expected {'the' if rows else 'no'} note that it is older than the code; "
            f"run python -m bench.older --write. Plans that differ: {rows[:3]}"
        )


@pytest.mark.parametrize("name", RESULTS)
def test_another_plan_is_found_on_any_machine(name, monkeypatch):
    """Not a test of this machine: cores and caches are those of the result."""
    monkeypatch.setenv("TVM_NUM_THREADS", "61")
    here = older.differing(name, RESULTS[name])
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    assert older.differing(name, RESULTS[name]) == here
    text = json.dumps(RESULTS[name]).replace("time_vector=64", "time_vector=32")
    assert len(older.differing(name, json.loads(text))) > len(here)


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_printed_of_their_results(page):
    """No figure is changed by hand, and no page keeps what its result no longer says."""
    found = json.loads((older.RESULTS / f"{PAGES[page]}.json").read_text())
    text = (older.ROOT / page).read_text(encoding="utf-8")
    assert text == printed(page, found), "run python -m bench.printed"
    told = found["machine"].get("commit", "neither its commit nor its command is known")
    assert told in text


def test_the_note_comes_and_goes():
    head, measured = "# Title\n\n", "Text.\n\n<!-- measured -->\n"
    for before in (head, head + measured):
        page = before + "Figures.\n<!-- /measured -->\n"
        noted = older.with_note(page, True)
        assert noted == f"{before}{older.NOTE}\n\nFigures.\n<!-- /measured -->\n"
        assert older.with_note(noted, True) == noted
        assert older.with_note(noted, False) == page
