"""Machine code of NVIDIA GPUs as nvdisasm prints it: instructions, loops, what a pass executes.

Loops are natural loops: of an edge to a block that dominates its source, all blocks from which the
source is reached without that block (A. Aho, M. Lam, R. Sethi and J. Ullman, "Compilers", second
edition, section 9.6). A pass of a loop takes one of several ways where there are branches: the one
that moves the most bytes, then has most special functions, then the fewest instructions. That is
the way of a whole tile: guards of tiles that are cut off move no more and compute more, and slow
paths of special cases (a division, a denormal) move nothing.

What a branch skips and nothing replaces counts as executed: some thread of the warp executes it.
Of a branch that a vote decides, which a warp takes as a whole, there are two ways. Calls are left
out, which are slow paths.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

__all__ = ["PIPES", "Instruction", "Kernel", "Loop", "Pass", "kernels", "pipe_of"]

#: Pipe -> opcodes, up to their first point; the first pattern that fits. The others are control.
_PIPES = {
    "fma": r"FFMA\w*|FADD\w*|FMUL\w*|IMAD|HFMA2|HADD2|HMUL2",
    "double": r"D(FMA|ADD|MUL|SETP|MMA)",
    "matrix": r"H?GMMA|[HIB]MMA|HGMMA|WARPGROUP\w*",
    "special": r"MUFU|[IF]2[IF]\w*|I2FP|F2FP|POPC|FLO|BREV|FRND",
    "shuffle": r"SHFL|VOTE|VOTEU|MATCH|REDUX",
    "shared": r"LDS|STS|LDSM|STSM|ATOMS",
    "global": r"LDGSTS|LDG|STG|LD|ST|ATOMG?|RED|LDGDEPBAR|DEPBAR|CCTL\w*|MEMBAR|ERRBAR|UBLKCP"
    r"|LDL|STL",
    "uniform": r"U(?!BLKCP)\w+|R2UR|S2UR|LDC|ULDC|LDCU",
    "control": r"BRA|BRX|EXIT|BAR|BSSY|BSYNC|BREAK|WARPSYNC|NOP|CALL|RET|YIELD|ELECT|PREEXIT"
    r"|ACQBULK|NANOSLEEP|BPT|SYNCS|BMOV|KILL|JMP",
    "alu": r"\w+",
}
PIPES = tuple(_PIPES)
_OF = {name: re.compile(rf"(?:{pattern})\b") for name, pattern in _PIPES.items()}
_WIDTH = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1, "BYPASS": 0}
#: Where the stall count begins, four bits, in the second half of an instruction of sm_70 and later.
_STALL = 41
_MOVES = re.compile(r"(LDG|STG|LDS|STS|LDGSTS|LD|ST)\b")
#: What the load and store unit executes.
_UNIT = re.compile(r"(LDG|STG|LDS|STS|LDGSTS|LDL|STL|LD|ST|LDSM|STSM|ATOM[GS]?|RED|SHFL)\b")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    opcode : str
        With its modifiers: ``LDG.E.128``.
    guarded : bool
        Whether it depends on a predicate, or, as ``BRA.DIV``, on whether the warp's threads meet.
    target : str or None
        The label that it may jump to.
    voted : bool
        Whether its predicate is what the threads of the warp voted.
    stall : int
        Cycles until the warp may issue its next one, as the assembler has written it down.
    """

    opcode: str
    guarded: bool
    target: str | None
    voted: bool = False
    stall: int = 1

    @property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def bytes(self) -> int:
        """What a thread moves between registers and memory, global or shared."""
        if not _MOVES.match(self.opcode):
            return 0
        widths = [_WIDTH[part] for part in self.opcode.split(".")[1:] if _WIDTH.get(part)]
        return widths[0] if widths else 4


def pipe_of(instruction: Instruction) -> str:
    """The pipe that an instruction occupies: one of ``PIPES``."""
    return next(name for name, pattern in _OF.items() if pattern.fullmatch(instruction.name))


@dataclass(frozen=True)
class Pass:
    """What one pass executes, of one thread.

    Attributes
    ----------
    instructions : float
        All of them.
    opcodes : Counter
        Of each opcode, modifiers included, how many.
    cycles : float
        That a warp takes which is alone on its scheduler, if it never waits for memory.
    """

    instructions: float = 0.0
    opcodes: Counter[str] = field(default_factory=Counter)
    cycles: float = 0.0

    @property
    def bytes(self) -> float:
        """Moved between registers and memory, global or shared."""
        return sum(n * Instruction(o, False, None).bytes for o, n in self.opcodes.items())

    @property
    def accesses(self) -> float:
        """Instructions of the load and store unit: accesses to memory, and shuffles."""
        return sum(n for opcode, n in self.opcodes.items() if _UNIT.match(opcode))

    def plus(self, other: Pass, times: float = 1.0) -> Pass:
        """This pass, and some of another one."""
        opcodes = Counter(self.opcodes)
        for opcode, count in other.opcodes.items():
            opcodes[opcode] += count * times  # type: ignore[assignment]
        return Pass(
            self.instructions + times * other.instructions,
            opcodes,
            self.cycles + times * other.cycles,
        )

    def by_pipe(self) -> dict[str, float]:
        """Instructions of every pipe that has some."""
        found: dict[str, float] = {}
        for opcode, count in self.opcodes.items():
            pipe = pipe_of(Instruction(opcode, False, None))
            found[pipe] = found.get(pipe, 0.0) + count
        return found


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop, or a whole kernel.

    Attributes
    ----------
    header : int
        The block where a pass begins.
    blocks : frozenset of int
        All of its blocks, those of inner loops included.
    inner : tuple of Loop
        Loops directly inside.
    """

    header: int
    blocks: frozenset[int]
    inner: tuple[Loop, ...]


class Kernel:
    """One function of a disassembly.

    Parameters
    ----------
    name : str
        As the linker knows it.
    lines : sequence of str
        Its part of nvdisasm's output.
    """

    def __init__(self, name: str, lines: Sequence[str]) -> None:
        self.name = name
        self.instructions, labels = _parsed(lines)
        self.blocks, self.successors = _blocks(self.instructions, labels)
        self.whole = _loops(self.successors)

    def depth(self) -> list[Loop]:
        """The kernel, and of the loops inside the one whose way moves most, down to the last."""
        nest = [self.whole]
        while nest[-1].inner:
            nest.append(max(nest[-1].inner, key=lambda loop: self._weight(loop)))
        return nest

    def _weight(self, loop: Loop) -> tuple[float, float]:
        once = self.executed(loop, [])
        return once.bytes, once.instructions

    def executed(self, loop: Loop, work: Sequence[float], *, few_special: bool = False) -> Pass:
        """What a pass of a loop executes.

        Parameters
        ----------
        loop : Loop
            Of this kernel.
        work : sequence of float
            What a pass of this loop does, and one of the heaviest loop directly inside, and so on:
            their quotients say how often the inner ones are passed. Loops beyond are passed once.
        few_special : bool
            Of ways that move the same, whether it is the one with the fewest special functions,
            not the most: a loop may compute a step in two ways, depending on what it finds.
        """
        heavy = max(loop.inner, key=self._weight) if loop.inner and len(work) > 1 else None
        node = {block: block for block in loop.blocks}
        content: dict[int, Pass] = {}
        for inner in loop.inner:
            times = work[0] / work[1] if inner is heavy else 1.0
            content[inner.header] = Pass().plus(
                self.executed(inner, work[1:], few_special=few_special), times
            )
            node.update(dict.fromkeys(inner.blocks, inner.header))
        for block in loop.blocks:
            if node[block] == block and block not in content:
                part = self.instructions[slice(*self.blocks[block])]
                cycles = sum(code.stall for code in part)
                content[block] = Pass(len(part), Counter(i.opcode for i in part), cycles)
        edges: dict[int, set[int]] = {n: set() for n in content}
        for block in loop.blocks:
            for to in self.successors[block]:
                if to in loop.blocks and to != loop.header and node[to] != node[block]:
                    edges[node[block]].add(node[to])
        return _heaviest(loop.header, edges, content, -1.0 if few_special else 1.0)


def kernels(text: str) -> Iterator[Kernel]:
    """The kernels of what nvdisasm prints."""
    for part in re.split(r"\n\s*\.text\.", text)[1:]:
        lines = part.splitlines()
        yield Kernel(lines[0].partition(":")[0], lines)


def _parsed(lines: Sequence[str]) -> tuple[list[Instruction], dict[str, int]]:
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    votes: set[str] = set()
    for line in lines:
        if label := re.match(r"\s*(\.L_x?_?\w+):", line):
            labels[label[1]] = len(found)
        elif code := re.match(r"\s*/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);", line):
            target = re.search(r"`\((\.L_\w+)\)", code[3])
            named = re.match(r"\s*!?U?P\d", code[3]) is not None and code[2].startswith("BRA")
            guarded = code[1] is not None or named or code[2].startswith("BRA.DIV")
            asked = re.search(r"U?P\d", code[1] or (code[3] if named else ""))
            voted = asked is not None and asked[0] in votes
            found.append(Instruction(code[2], guarded, target and target[1], voted))
            if made := re.match(r"\s*(U?P\d)\b", code[3]):
                (votes.add if code[2].startswith("VOTE") else votes.discard)(made[1])
        elif found and (upper := re.match(r"\s*/\* 0x([0-9a-f]{16}) \*/\s*$", line)):
            # The second half of an instruction, as nvdisasm -hex prints it.
            stall = int(upper[1], 16) >> _STALL & 15
            found[-1] = replace(found[-1], stall=max(1, stall))
    return found, labels


def _blocks(
    instructions: list[Instruction], labels: dict[str, int]
) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Ranges of instructions without a jump in or out, and which follow which."""
    starts = {0, *labels.values()}
    starts |= {i + 1 for i, code in enumerate(instructions) if code.name in _JUMPS}
    cuts = sorted(s for s in starts if s < len(instructions))
    ranges = list(zip(cuts, [*cuts[1:], len(instructions)], strict=True))
    at = {first: number for number, (first, _) in enumerate(ranges)}
    follows: list[list[int]] = []
    for number, (_, end) in enumerate(ranges):
        last, to = instructions[end - 1], []
        if last.name == "BRA" and last.target in labels and labels[last.target] in at:
            to.append(at[labels[last.target]])
        passes = last.name not in ("BRA", "EXIT", "RET", "BRX", "JMP") or last.guarded
        if passes and number + 1 < len(ranges):
            to.append(number + 1)
        follows.append(to)
    for number, to in enumerate(follows):
        if len(to) == 2 and to[0] > to[1] and to[0] in follows[to[0] - 1]:
            skipped = instructions[ranges[to[1]][0] : ranges[to[0]][0]]
            voted = instructions[ranges[number][1] - 1].voted
            if not voted and not any(code.name == "CALL" for code in skipped):
                follows[number] = to[1:]
    return ranges, follows


_JUMPS = frozenset({"BRA", "EXIT", "RET", "BRX", "JMP"})


def _loops(successors: list[list[int]]) -> Loop:
    """The kernel as a loop that is passed once, with all loops inside one another."""
    order = _postorder(successors)
    dominators = _dominators(successors, order)
    before: list[list[int]] = [[] for _ in successors]
    for block in order:
        for to in successors[block]:
            before[to].append(block)
    bodies: dict[int, set[int]] = {}
    for block in order:
        for head in successors[block]:
            if head in dominators[block]:
                body, ahead = bodies.setdefault(head, {head}), [block]
                while ahead:
                    at = ahead.pop()
                    if at not in body:
                        body.add(at)
                        ahead += before[at]
    return _nested(0, frozenset(order), bodies)


def _nested(header: int, blocks: frozenset[int], bodies: dict[int, set[int]]) -> Loop:
    inside = {h: b for h, b in bodies.items() if b < blocks or (b == blocks and h != header)}
    outermost = [h for h, b in inside.items() if not any(b < other for other in inside.values())]
    inner = tuple(
        _nested(h, frozenset(inside[h]), {k: b for k, b in inside.items() if k != h})
        for h in outermost
    )
    return Loop(header, blocks, inner)


def _postorder(successors: list[list[int]]) -> list[int]:
    order, seen, stack = [], {0}, [(0, iter(successors[0]))]
    while stack:
        block, rest = stack[-1]
        for to in rest:
            if to not in seen:
                seen.add(to)
                stack.append((to, iter(successors[to])))
                break
        else:
            order.append(block)
            stack.pop()
    return order


def _dominators(successors: list[list[int]], order: list[int]) -> dict[int, set[int]]:
    """Of every block those that are on every way to it."""
    everything = set(order)
    found = {block: set(everything) for block in order}
    found[0] = {0}
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for to in successors[block]:
            before[to].append(block)
    changed = True
    while changed:
        changed = False
        for block in reversed(order):
            if block:
                new = set.intersection(*(found[b] for b in before[block])) | {block}
                if new != found[block]:
                    found[block], changed = new, True
    return found


def _heaviest(
    first: int, edges: dict[int, set[int]], content: dict[int, Pass], sign: float
) -> Pass:
    """The way from ``first`` that moves most bytes, then ``sign`` times most special functions.

    Of these the one with the fewest instructions.
    """
    best: dict[int, tuple[tuple[float, float, float], int | None]] = {}
    on_way: set[int] = set()
    stack = [(first, False)]
    while stack:
        node, done = stack.pop()
        if done:
            on_way.discard(node)
            # A way back into itself is none: jumps into the middle of a loop are left out.
            ends = [(best[to][0], to) for to in edges[node] if to in best]
            further, to = max(ends, key=lambda end: end[0]) if ends else ((0.0, 0.0, 0.0), None)
            own = content[node]
            special = sign * own.by_pipe().get("special", 0.0)
            most = further[0] + own.bytes, further[1] + special, further[2] - own.instructions
            best[node] = most, to
        elif node not in best and node not in on_way:
            on_way.add(node)
            stack.append((node, True))
            stack += [(to, False) for to in edges[node]]
    total, at = Pass(), best[first][1]
    total = total.plus(content[first])
    while at is not None:
        total, at = total.plus(content[at]), best[at][1]
    return total
