"""The report of ``bench.gpu``: a line per case, the ladders, and the targets."""

from __future__ import annotations

from typing import Any

__all__ = ["table"]

#: Pattern of a case, name of the peer, how many times slower than ours it must be, in words.
_TARGETS = (
    ("affine", "CUB DeviceScan", 1.0),
    ("cumsum", "CUB DeviceScan", 1.0),
    ("affine", "accelerated-scan", 1.0),
    ("affine", "accelerated-scan's kernel", 1.0),
    ("selective", "mamba-ssm", 1.0),
    ("selective", "mamba-ssm's kernel", 1.0),
    ("rwkv6", "block per head (scheme)", 1.0),
    ("affine 1536x1024", "CUDA, sequential", 10.0),
)


def _parts(case: str) -> tuple[str, list[int]]:
    family, sizes, *_ = case.split()
    return family, [int(n) for n in sizes.split("x")]


def _wanted(case: str, name: str) -> float | None:
    """How many times as long as ours a peer should take, by the targets; None where none is set."""
    family, sizes = _parts(case)
    if family == "selective" and "mamba" in name:
        return 2.0 if sizes[0] * sizes[1] >= 4096 else 1.3
    if family == "rwkv6" and "per head" in name:
        return 5.0 if sizes[1] >= 1024 else None
    found = [t for pattern, peer, t in _TARGETS if case.startswith(pattern) and peer == name]
    return found[0] if found else None


def _is_large(case: str) -> bool:
    """Whether a case streams enough for the target of 90 % of a copy."""
    family, sizes = _parts(case)
    return family in ("affine", "cumsum") and sizes[0] * sizes[1] >= 1 << 24


def table(rows: list[dict[str, Any]], copy: float) -> list[str]:
    """Lines of the report.

    Parameters
    ----------
    rows : list of dict
        Of ``bench.gpu``: ``case``, ``name``, and times, or why there are none.
    copy : float
        Bytes per second of a copy.

    Returns
    -------
    list of str
    """
    times = [row for row in rows if "median" in row]
    cases = list(dict.fromkeys(row["case"] for row in times))
    base = {row["case"]: row for row in times if row["name"] == "default"}
    lines = []
    for case in cases:
        steps = [row for row in times if row["case"] == case and row.get("step")]
        if steps:
            lines += ["", f"ladder of {case}"]
            lines += [f"  {_figures(row)}  {row['name']}" for row in steps]
    failed = [row for row in rows if "failed" in row]
    if failed:
        lines += ["", "without a time:"]
        # One line for every reason, however many cases it takes part in.
        reasons = dict.fromkeys((row["name"], row["failed"].split("\n")[0]) for row in failed)
        lines += [f"  {name}: {reason[:150]}" for name, reason in reasons]
    lines += ["", f"default plans; a copy moves {copy / 1e9:.0f} GB/s; peers in times of ours"]
    missed: list[str] = []
    for case, row in base.items():
        peers = [r for r in times if r["case"] == case and r.get("peer")]
        ratios = {r["name"]: r["median"] / row["median"] for r in peers}
        shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        lines.append(f"  {_figures(row)}  {case}  {shown}")
        if _is_large(case) and row["of_copy"] < 0.9:
            missed.append(f"{case}: {100 * row['of_copy']:.0f} % of a copy, 90 % asked for")
        for name, ratio in ratios.items():
            wanted = _wanted(case, name)
            if wanted is not None and ratio < wanted:
                missed.append(f"{case}: {ratio:.2f} times {name}, {wanted} asked for")
    lines += ["", f"targets missed: {len(missed)}", *(f"  {line}" for line in missed)]
    return lines


def _figures(row: dict[str, Any]) -> str:
    return (
        f"{row['median'] * 1e6:10.1f} us {row['gbps']:6.0f} GB/s {100 * row['of_copy']:5.1f} % "
        f"+-{100 * row['spread']:4.1f} %"
    )
