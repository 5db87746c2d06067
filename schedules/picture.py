"""The picture of a plan: sentences, and a drawing that is made as text or as SVG."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Serial:
    """Serial scans of lanes, side by side.

    Attributes
    ----------
    who : {"lane", "thread"}
        What scans a lane.
    level : str
        Where the steps stand one after another: ``core``, ``block``, ``thread``.
    note : str
        How they exchange.
    """

    who: str
    level: str
    note: str = ""


@dataclass(frozen=True)
class Chunks:
    """Chunks of time that are reduced, scanned and replayed.

    Attributes
    ----------
    count : int
        Of a lane.
    """

    count: int


@dataclass(frozen=True)
class Tree:
    """A tree over threads that hold some steps each.

    Attributes
    ----------
    kind : {"blelloch", "kogge_stone", "warp"}
        How they exchange.
    threads, items : int
        Of a lane in a block; steps of a thread.
    legend : str
        What happens with the next tile.
    """

    kind: str
    threads: int
    items: int
    legend: str


@dataclass(frozen=True)
class VectorScan:
    """Vectors whose cells are neighbouring steps, scanned by doubling distances.

    Attributes
    ----------
    cells : int
        That meet in the scan of a vector.
    run : int
        Steps of a cell, scanned one after another before the cells meet.
    """

    cells: int
    run: int


@dataclass(frozen=True)
class Tiles:
    """Rows of several lanes that are transposed in registers, so that a vector holds lanes.

    Attributes
    ----------
    lanes : int
        Of a tile, which has as many steps as a vector has cells.
    """

    lanes: int


Drawing = Serial | Chunks | Tree | VectorScan | Tiles


@dataclass(frozen=True)
class Picture:
    """The sentences and drawings that ``explain`` shows of a plan.

    Attributes
    ----------
    lines : tuple of (str, str)
        A word for a level (``grid``, ``thread``, ..) and what happens there.
    drawings : tuple of Drawing
        In the order in which they are drawn.
    """

    lines: tuple[tuple[str, str], ...]
    drawings: tuple[Drawing, ...]
