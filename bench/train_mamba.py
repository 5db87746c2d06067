"""A byte-level Mamba language model, trained on Python's own documentation.

Twice from the same weights on the same batches: with the scan of tvm_scan, and with the scan as
one step after another in PyTorch, with the arithmetic of mamba-ssm's reference. The
losses must agree; the times are those of whole training steps.

python -m bench.train_mamba [--steps 150] [--plot docs/images/train_mamba.svg] [--write]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data import topics
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tvm_scan.torch.nn as layers
from bench import torch_page
from bench.timing import machine
from tvm_scan.arguments import host_target

__all__ = ["ByteModel", "main", "reference", "text", "train"]

_LOG = math.log(2)


def text() -> bytes:
    """The reference of the language, which every Python has: some 600 kB of prose and code."""
    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()


class ByteModel(nn.Module):
    """Bytes in, the logits of the next byte out."""

    def __init__(self, width: int, depth: int, states: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth + 1))
        self.mixers = nn.ModuleList(layers.Mamba(width, states) for _ in range(depth))
        self.head = nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=False):
            x = x + mixer(norm(x))[0]
        return self.head(self.norms[-1](x))


def _loop(
    u, delta, A, B, C, D, z, bias, *, delta_softplus, h0, return_last
) -> tuple[Tensor, Tensor]:
    """The selective scan, one step after another."""
    dt = F.softplus(delta + bias[:, None]) if delta_softplus else delta + bias[:, None]
    decay = torch.exp(dt.unsqueeze(2) * A.unsqueeze(-1))
    drive = (dt * u).unsqueeze(2) * B.unsqueeze(1)
    h, ys = h0, []
    # Slices by unbind: the gradient of an index would be as large as the whole, at every step.
    for gate, added, read in zip(*(t.unbind(-1) for t in (decay, drive, C)), strict=True):
        h = gate * h + added
        ys.append((h * read.unsqueeze(1)).sum(2))
    return (torch.stack(ys, 2) + D[:, None] * u) * F.silu(z), h


@contextmanager
def reference() -> Iterator[None]:
    """Let the layers run the loop."""
    ours, layers.selective_scan = layers.selective_scan, _loop
    try:
        yield
    finally:
        layers.selective_scan = ours


def _batches(data: Tensor, count: int, batch: int, length: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - length - 1, (count, batch), generator=generator)
    span = torch.arange(length + 1)
    return [data[row[:, None] + span] for row in starts]


def _bits(model: ByteModel, batch: Tensor) -> Tensor:
    """Mean bits for a byte."""
    logits = model(batch[:, :-1]).flatten(0, 1)
    return F.cross_entropy(logits, batch[:, 1:].flatten()) / _LOG


def train(args: argparse.Namespace) -> dict[str, object]:
    """Train from seed 0; return the loss of every step, that on unseen text, and seconds."""
    torch.manual_seed(0)
    model = ByteModel(args.width, args.depth, args.states)
    data = torch.frombuffer(bytearray(text()), dtype=torch.uint8).long()
    cut = len(data) * 9 // 10
    batches = _batches(data[:cut], args.steps, args.batch, args.length, 1)
    unseen = _batches(data[cut:], 8, args.batch, args.length, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.1)
    # A rate that rises for a tenth of the steps, then falls along half a cosine.
    rise = max(args.steps // 10, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / rise, 0.55 + 0.45 * math.cos(math.pi * step / args.steps)),
    )
    _bits(model, batches[0]).backward()  # kernels are built, or loaded, here
    losses, seconds = [], []
    for batch in batches:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = _bits(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    with torch.no_grad():
        held_out = sum(_bits(model, batch).item() for batch in unseen) / len(unseen)
    return {"losses": losses, "unseen": held_out, "seconds": seconds}


def plot(path: Path, runs: dict[str, dict], args: argparse.Namespace) -> None:
    """Draw loss against steps, and loss against time."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "tvm_scan"
    from itertools import accumulate

    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    styles = {"tvm_scan": "-", "loop": "--"}
    for name, run in runs.items():
        left.plot(run["losses"], styles[name], label=name)
        right.plot(list(accumulate(run["seconds"])), run["losses"], styles[name], label=name)
    left.set(xlabel="step", ylabel="bits per byte")
    right.set(xlabel="seconds of training")
    left.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    title = f"{args.depth} layers of width {args.width}, {args.batch} x {args.length} bytes a step"
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main(argv: list[str] | None = None) -> int:
    """Train both ways, print what came out; 1 if the losses do not agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (
        ("--steps", 150),
        ("--batch", 8),
        ("--length", 128),
        ("--width", 64),
        ("--depth", 2),
        ("--states", 16),
    ):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--tolerance", type=float, default=0.02, help="of the losses, in bits")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--write", action="store_true", help="write docs/torch/training.md")
    args = parser.parse_args(argv)
    runs = {"tvm_scan": train(args)}
    with reference():
        runs["loop"] = train(args)
    apart = [
        abs(a - b) for a, b in zip(runs["tvm_scan"]["losses"], runs["loop"]["losses"], strict=True)
    ]
    for name, run in runs.items():
        print(
            f"{name:9} {run['losses'][0]:.3f} -> {run['losses'][-1]:.3f} bits per byte, "
            f"{run['unseen']:.3f} on unseen text, {median(run['seconds']) * 1e3:.1f} ms a step"
        )
    faster = median(runs["loop"]["seconds"]) / median(runs["tvm_scan"]["seconds"])
    print(f"losses at most {max(apart):.1e} bits apart; a step {faster:.1f} times as fast")
    if args.plot:
        plot(args.plot, runs, args)
    options = {n: v for n, v in vars(args).items() if type(v) in (int, float)}
    known = machine(host_target()) | {"torch": torch.__version__}
    result = {"machine": known, "options": options, **runs}
    if args.json:
        args.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    if args.write:
        torch_page.write(torch_page.DOCS / "training.md", "training", torch_page.training(result))
    return 0 if max(apart) <= args.tolerance and runs["tvm_scan"]["losses"][-1] < 8 else 1


if __name__ == "__main__":
    sys.exit(main())
