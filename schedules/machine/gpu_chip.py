"""GPUs: what each does per clock, its memory and latencies; and what a plan asks of one."""

from __future__ import annotations

from dataclasses import dataclass

#: Cycles until memory answers, a level of shuffles or of a tree, a barrier, an exponential; fitted,
#: as the two below, to 1256 kernels that ``bench.gpu_choice`` timed on an H100.
MEMORY, LEVEL, BARRIER, EXP = 630.0, 32.0, 36.0, 54.0
#: Cycles from one instruction of a warp to its next one, where no other warp is in its way.
APART = 2.2
#: Seconds of a kernel beside its work: launched, filled and drained. What a kernel of little work
#: takes of that, which clears words or scans the carries of tiles. Fitted to 972 trees.
LAUNCH, LITTLE = 4.5e-6, 0.28
#: Steps that the compiler overlaps in a serial loop.
UNROLLED = 4
#: What a byte from the second-level cache costs, as a share of one from memory.
CACHED = 0.4


@dataclass(frozen=True)
class GpuChip:
    """One GPU; an H200 if nothing else is said.

    Attributes
    ----------
    name : str
        Of the product.
    capability : int
        Compute capability: 90 of ``sm_90``.
    multiprocessors : int
        All of them.
    bandwidth : float
        Bytes per second of a copy.
    clock : float
        Of a multiprocessor, per second.
    cache_bytes : float
        What the second-level cache still holds of what was written.
    threads, blocks, shared_bytes : int
        That a multiprocessor holds.
    special, issue : float
        Per clock and multiprocessor: special functions, instructions of warps.
    tensor : float
        Per clock and multiprocessor: multiply-adds of tf32, dense, by instructions of a warp on
        tensor cores.
    """

    name: str = "H200"
    capability: int = 90
    multiprocessors: int = 132
    bandwidth: float = 4.3e12
    clock: float = 1.98e9
    cache_bytes: float = 30e6
    threads: int = 2048
    blocks: int = 32
    shared_bytes: int = 228 << 10
    special: float = 16.0
    issue: float = 4.0
    tensor: float = 1024.0

    @property
    def block_bytes(self) -> int:
        """Bytes of shared memory that the driver takes for a block, from sm_80 on."""
        return 1 << 10 if self.capability >= 80 else 0

    @property
    def arch(self) -> str:
        """The name of its architecture."""
        return f"sm_{self.capability}"


H200 = GpuChip()
#: Of the H200, what a copy reaches, and the part of the cache that counts on, as shares of what is
#: published: 4.8 TB/s and 50 MB. Of the others the same is assumed.
_COPY, _KEPT = 4.3 / 4.8, 0.6
#: Instructions of a warp per clock where a multiprocessor has 64 units of float32, which two thirds
#: of the instructions take (docs/cuda/machine_code.md).
_HALF_UNITS = 3.0


def _published(
    name: str,
    capability: int,
    multiprocessors: int,
    terabytes: float,
    gigahertz: float,
    megabytes: float,
    holds: tuple[int, int, int],
    *,
    special: float = 16.0,
    issue: float = 4.0,
    tensor: float = 128.0,
) -> GpuChip:
    """A GPU by its data sheet: TB/s, boost clock, MB of cache; threads, blocks and KB of shared."""
    threads, blocks, kilobytes = holds
    return GpuChip(
        name,
        capability,
        multiprocessors,
        terabytes * 1e12 * _COPY,
        gigahertz * 1e9,
        megabytes * 1e6 * _KEPT,
        threads,
        blocks,
        kilobytes << 10,
        special,
        issue,
        tensor,
    )


#: The largest GPU of each architecture, and others, which are taken where a target names them. What
#: a multiprocessor holds, and what of it the driver takes for a block, is in NVIDIA's CCCL,
#: ``cuda/__device/arch_traits.h``, for each of them; the CUDA Programming Guide says the same in
#: "Compute Capabilities", and what is done per clock in "Arithmetic Instructions". (The Blackwell
#: Tuning Guide has 32 blocks and 128 KB for sm_120; devices report 24 and 100.) Multiprocessors,
#: bandwidth, clock and cache are those of NVIDIA's data sheets and architecture white papers (a
#: clock is also the published rate of float32 over 256 per multiprocessor, or 128 where that has 64
#: lanes: so RTX PRO 6000's, 125 TFLOPS): of the T4 the white paper's 320 GB/s, where its data sheet
#: has 300; of the B200 and B300 the 8 TB/s of the DGX systems, where HGX boards have 7.7. Not
#: NVIDIA's own: B200's cache and clock, taken for B300's too, of chipsandcheese.com, "Nvidia's
#: B200"; L40's cache, 96 MB, also measured in arXiv 2606.22588; Thor's multiprocessors and cache,
#: as a device reports them in NVIDIA's forum (356355). B300's special functions are those of
#: NVIDIA's "Inside Blackwell Ultra" (10.7 against 5 tera-exponentials per second). Of tensor cores,
#: none measured by us: the white papers of A100 (156 TFLOPS, 108 multiprocessors at 1.41 GHz) and
#: H100 SXM (495 TFLOPS, 132 at 1.83 GHz), the data sheets of A40 (75 TFLOPS) and L40 (91 TFLOPS);
#: of B200 and B300 they have the rate of other instructions alone, and those of a warp count as an
#: H100's; others count as the slowest.
_CHIPS = (
    _published("V100", 70, 80, 0.9, 1.53, 6, (2048, 32, 96), issue=_HALF_UNITS),
    _published("T4", 75, 40, 0.32, 1.59, 4, (1024, 16, 64), issue=_HALF_UNITS),
    _published("A100", 80, 108, 2.039, 1.41, 40, (2048, 32, 164), issue=_HALF_UNITS, tensor=512.0),
    _published("A40", 86, 84, 0.696, 1.74, 6, (1536, 16, 100), tensor=256.0),
    _published("Jetson AGX Orin", 87, 16, 0.2048, 1.3, 4, (1536, 16, 164)),
    _published("L40", 89, 142, 0.864, 2.49, 96, (1536, 24, 100)),
    H200,
    # Its data sheet has 3.35 TB/s; a copy of a gigabyte took as long as 3.0 do.
    GpuChip("H100", bandwidth=3.0e12),
    _published("B200", 100, 148, 8.0, 1.965, 126, (2048, 32, 228), tensor=1024.0),
    _published("B300", 103, 148, 8.0, 1.965, 126, (2048, 32, 228), special=32.0, tensor=1024.0),
    _published("Jetson Thor", 110, 20, 0.273, 1.57, 32, (1536, 24, 228)),
    _published("RTX PRO 6000 Blackwell", 120, 188, 1.792, 2.6, 128, (1536, 24, 100)),
)


def gpu_chip_of(capability: int, model: str = "") -> GpuChip:
    """The GPU of an architecture, or of the nearest one below that is known.

    Parameters
    ----------
    capability : int
        90 of ``sm_90``; 0 where a target says none, or of another vendor, which are taken for an
        H200.
    model : str
        What a target says of its product, ``NVIDIA H100 80GB HBM3``: among the GPUs of the
        architecture the one whose name is in it, if any.
    """
    if capability <= 0:
        return H200
    below = (chip.capability for chip in _CHIPS if chip.capability <= capability)
    nearest = max(below, default=_CHIPS[0].capability)
    chips = [chip for chip in _CHIPS if chip.capability == nearest]
    return next((chip for chip in chips if chip.name in model), chips[0])


@dataclass(frozen=True)
class Work:
    """Work of a plan, before it is known how fast.

    Attributes
    ----------
    moved, specials, issued : float
        Bytes, special functions, instructions of warps.
    barriers, shared : float
        Barriers that a block passes, of all kernels together; accesses of warps to shared memory,
        each of 128 bytes at most.
    threads : float
        All of them.
    chain, once : float
        Cycles that every block waits for itself; cycles that only pass once.
    between : float
        Cycles of kernels of few blocks, between others that wait for them.
    paired : float
        Of the instructions of warps, those that are saved where one works on two numbers.
    launches : float
        Kernels; one of little work counts as ``LITTLE``.
    lines : float
        Cycles in which a multiprocessor's load and store unit is busy, of all of them together.
    tensor : float
        Multiply-adds of tf32 on tensor cores.
    lost : float
        Bytes that memory could move while it brings short runs, and lines again.
    """

    moved: float
    specials: float
    issued: float
    barriers: float
    shared: float
    threads: float
    chain: float
    once: float
    launches: float
    lines: float
    between: float = 0.0
    paired: float = 0.0
    tensor: float = 0.0
    lost: float = 0.0
