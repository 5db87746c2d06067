"""The one place where a ``Refusal`` becomes text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_scan.text import underlined

if TYPE_CHECKING:
    from tvm_scan.recurrence import Refusal


_CONTEXT = 6


def refusal_text(refusal: Refusal) -> str:
    """Text of a refusal: what was expected and found, the script with carets, the fix."""
    lines = [f"parallel_scan: {refusal.detail} [{refusal.kind.value}]"]
    excerpt = _underlined(refusal)
    if excerpt:
        lines += ["", excerpt]
    lines += ["", f"fix: {refusal.fix}"]
    return "\n".join(lines)


def _underlined(refusal: Refusal) -> str:
    """Lines of the printed function around the underlined expression."""
    if refusal.func is None or refusal.expr is None:
        return ""
    script = underlined(refusal.func, refusal.expr)
    marks = [i for i, line in enumerate(script) if line.strip() and set(line.strip()) == {"^"}]
    if not marks:
        return ""
    first, last = max(0, marks[0] - _CONTEXT), marks[-1] + 1
    return "\n".join(script[first:last])
