"""Bank conflicts of shared memory, from the indices in an emitted kernel."""

import re

__all__ = ["check_banks", "conflicts"]

#: Values of the loop variables in the indices.
_VARIABLES = {"tile": 1, "g": 1, "block": 1, "k": 1, "s": 1}


def conflicts(places, size):
    """The most words of one bank that a group of threads asks for at once."""
    threads = 128 // max(4, size)
    worst = 1
    for first in range(0, 32, threads):
        banks: dict[int, set[int]] = {}
        for place in places[first : first + threads]:
            for word in range(place // 4, (place + size - 1) // 4 + 1):
                banks.setdefault(word % 32, set()).add(word)
        worst = max(worst, *(len(words) for words in banks.values()))
    return worst


def _accesses(source, name):
    """``(bytes, place of every thread in bytes)`` of all accesses to a tile in a kernel."""
    found = []
    held = dict(re.findall(r"(index\d+_ptr\[0\]) = scan_held\((.*)\);", source))
    declared = re.search(rf"__shared__ alignas\(\d+\) (float4?) {name}\[", source)
    for match in re.finditer(rf"{name}(\[| \+ )", source[declared.end() :]):
        text, depth, stop = source[declared.end() + match.end() :], 0, 0
        while depth >= 0:
            depth += (text[stop] in "([") - (text[stop] in ")]")
            stop += 1
        expression = text[: stop - 1]
        for register, value in held.items():
            expression = expression.replace(register, f"({value})")
        expression = (
            expression.replace("(int)threadIdx.x", "thread")
            .replace("(int)blockIdx.x", "0")
            .replace("(int)threadIdx.y", "0")
        )
        expression = re.sub(r"\(int(64_t)?\)", "", expression)
        assert re.fullmatch(r"(?:[\w\s()+*&%-]|>>)+", expression), expression
        step = 16 if declared[1] == "float4" else 4
        before = source[: declared.end() + match.start()].rpartition("\n")[2]
        pair = before.endswith("*(float2*)(")
        whole = step == 16 or before.endswith("*(float4*)(") or "cp_async_cg" in before
        moved = 8 if pair else 16 if whole else 4
        code = compile(expression, name, "eval")
        places = [eval(code, {"thread": t, **_VARIABLES}) * step for t in range(32)]
        found.append((moved, places))
    return found


def check_banks(source, least, distinct=True, kind="tile"):
    """Assert that no access to a tile in an emitted kernel asks a bank for two words.

    ``distinct``: and that no two threads access the same place. ``kind``: of which arrays.
    """
    names = set(re.findall(rf"__shared__ alignas\(\d+\) float4? (\w+_{kind}_ptr)\[", source))
    assert names, "no tile in the kernel"
    for name in names:
        found = _accesses(source, name)
        assert len(found) >= least, (name, len(found))
        for moved, places in found:
            assert not distinct or len(set(places)) == 32
            assert conflicts(places, moved) == 1, (name, moved, places)
