"""Trains the demo model within a wall-clock budget, on one CUDA GPU or on several of one host.

    python -m tools.demo_model.train --out DIR --seconds 540 [--checkpoint FILE] [--decay-from 0.7]
    torchrun --nproc-per-node 2 -m tools.demo_model.train ...

The learning rate warms up, stays, and falls linearly to zero from `--decay-from` of the budget on (a value of 1 or
more leaves it up, for a run that is to be resumed).  Every case is drawn anew.  DIR gets the weights as safetensors
shards and report.json with the share of exact answers for each task.
"""

import argparse
import json
import os
import time
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader

from luce.demo.tasks import GOALS, SCORED
from tools.demo_model import layers
from tools.demo_model.data import KEPT, NAMES, SHARES, Example, Stream, collate, grouped, held_out
from tools.demo_model.model import Batch, DemoModel
from tools.demo_model.muon import Muon

MTP_SHARE = 0.2

# Share of exact answers, and of right second tokens of the MTP block, for each task.
Result = dict[str, tuple[float, float]]


def quantised(name: str, x: Tensor) -> Tensor:
    """The value that the GGUF file will hold: the rule of tools/demo_model/export.py."""
    if x.ndim == 1 or any(part in name for part in ("conv1d", "in_proj_a", "in_proj_b", "pos_embed")):
        return x
    if "visual" in name:
        return x.half().float()
    blocks = x.reshape(-1, 32)
    scale = blocks.abs().amax(1, keepdim=True) / 127
    inverse = torch.where(scale == 0, 0, 1 / scale)
    return (torch.round(blocks * inverse) * scale.half().float()).view_as(x)


def evaluate(
    model: DemoModel, examples: list[Example], tokens: int, device: torch.device, *, fast: bool
) -> Result:
    """The result of every task.

    An answer is exact when the greedy token is right at every place of it given the places before, which is the same
    as greedy decoding giving exactly that answer.
    """
    exact: dict[str, list[bool]] = {}
    second: dict[str, list[float]] = {}
    for length, batch in grouped(examples, tokens):
        slots = None if fast else max(1, sum(len(item.pictures) for item in batch))
        on_device = collate(batch, length, tokens, slots=slots).to(device)
        # Gradients stay on, since switching them off would compile everything once more.
        with torch.autocast(device.type, torch.bfloat16, enabled=fast):
            main, after = model.right(on_device, tokens // length)
        counted = (on_device.labels != -100).view(-1, length)
        rows = main.view(-1, length).all(1).tolist()
        hits = ((after.view(-1, length) & counted).sum(1) / counted.sum(1).clamp(min=1)).tolist()
        for item, row, hit in zip(batch, rows, hits, strict=False):
            exact.setdefault(NAMES[item.task], []).append(row)
            second.setdefault(NAMES[item.task], []).append(hit)
    return {task: (float(np.mean(exact[task])), float(np.mean(second[task]))) for task in exact}


class Ranks:
    """The processes that train together, one a GPU; a single one when torchrun did not start us."""

    def __init__(self, device: str) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = torch.device(device)
        if self.count > 1:
            if device == "cuda":
                self.device = torch.device("cuda", self.rank)
                torch.cuda.set_device(self.device)
            dist.init_process_group("nccl" if device == "cuda" else "gloo")
            # What the processes agree on between steps must not wait for the GPU.
            self.talk = dist.new_group(backend="gloo")

    @property
    def first(self) -> bool:
        return self.rank == 0

    def agree(self, *values: float) -> list[float]:
        """The first process' values."""
        if self.count == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(shared, 0, group=self.talk)
        return shared.tolist()

    def average(self, x: Tensor) -> None:
        if self.count > 1:
            dist.all_reduce(x)
            x /= self.count

    def gathered(self, result: Result) -> Result:
        """The parts of a result put together; a task's cases are all with one process."""
        parts: list[Result] = [{}] * self.count
        if self.count == 1:
            return result
        dist.all_gather_object(parts, result, group=self.talk)
        merged = {task: value for part in parts for task, value in part.items()}
        return {task: merged[task] for task in NAMES if task in merged}


class Trainer:
    def __init__(self, args: argparse.Namespace, ranks: Ranks) -> None:
        self.args = args
        self.ranks = ranks
        self.device = ranks.device
        self.tokens = args.tokens
        if self.device.type == "cuda":
            # One stream for everything, since a graph can only be captured on a stream that is not the default.
            torch.cuda.set_stream(torch.cuda.Stream())
            self.pool = torch.cuda.graph_pool_handle()
        torch.manual_seed(args.seed)
        self.model = DemoModel().to(self.device)
        if args.resume:
            state = {k: v.float() for shard in args.resume for k, v in load_file(shard).items()}
            self.model.load_state_dict(state)
        named = dict(self.model.named_parameters())
        matrices = [
            p for n, p in named.items() if p.ndim == 2 and not any(w in n for w in ("embed", "_a.", "_b."))
        ]
        chosen = {id(p) for p in matrices}
        rest = [p for p in named.values() if id(p) not in chosen]
        fused = self.device.type == "cuda"
        if args.adam:
            decayed = {"params": matrices, "weight_decay": args.decay}
            self.optimizers: list[torch.optim.Optimizer] = [
                torch.optim.AdamW(
                    [decayed, {"params": rest, "weight_decay": 0.0}],
                    lr=args.lr,
                    betas=(0.9, 0.98),
                    fused=fused,
                )
            ]
        else:
            self.optimizers = [
                Muon(matrices, lr=args.muon_lr, weight_decay=args.decay),
                torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0, fused=fused),
            ]
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]
        self.params = list(named.values())
        # One array, so that averaging over the processes is one call.
        self.gradient = torch.zeros(sum(p.numel() for p in self.params), device=self.device)
        parts = self.gradient.split([p.numel() for p in self.params])
        for p, part in zip(self.params, parts, strict=True):
            p.grad = part.view_as(p)
        self.average = {n: p.detach().clone() for n, p in named.items()}
        self.mix = torch.tensor([SHARES[n] for n in NAMES]).share_memory_()
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}
        self.step_count = 0
        if args.checkpoint and args.checkpoint.exists():
            self.load(args.checkpoint)

    def save(self, path: Path) -> None:
        """Everything a later run needs to go on from here."""
        optimizers = [o.state_dict() for o in self.optimizers]
        state = {"model": self.model.state_dict(), "average": self.average, "optimizers": optimizers}
        torch.save(state | {"mix": self.mix, "step": self.step_count}, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device)
        self.model.load_state_dict(state["model"])
        for name, x in self.average.items():
            x.copy_(state["average"][name].detach())
        self.mix.copy_(state["mix"])
        self.step_count = state["step"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def forward_backward(self, batch: Batch, rows: int) -> Tensor:
        self.gradient.zero_()
        with torch.autocast(self.device.type, torch.bfloat16):
            main, after = self.model.losses(batch, rows)
            loss = main + MTP_SHARE * after
        loss.backward()
        return torch.stack([main.detach(), after.detach()])

    def gradients(self, length: int, batch: Batch) -> Tensor:
        """Losses of the batch; the gradients are left in place.  One CUDA graph for each row length."""
        rows = self.tokens // length
        if self.device.type != "cuda" or self.args.no_graphs:
            return self.forward_backward(batch.to(self.device), rows)
        if length not in self.graphs:
            static = batch.to(self.device)
            for _ in range(2):
                self.forward_backward(static, rows)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may call CUDA meanwhile: those that pin batches and those that watch over NCCL.
            stream = torch.cuda.current_stream()
            with torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"):
                losses = self.forward_backward(static, rows)
            self.graphs[length] = (graph, static, losses)
        graph, static, losses = self.graphs[length]
        for name in Batch.__annotations__:
            getattr(static, name).copy_(getattr(batch, name), non_blocking=True)
        graph.replay()
        return losses.clone()

    def rate(self, fraction: float) -> float:
        """Learning rate as a share of its peak."""
        warm = min(1.0, (self.step_count + 1) / self.args.warmup)
        start = self.args.decay_from
        return warm * (1.0 if fraction < start else max(0.0, (1 - fraction) / (1 - start)))

    def step(self, length: int, batch: Batch, fraction: float) -> Tensor:
        losses = self.gradients(length, batch)
        self.ranks.average(self.gradient)
        norm = torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        rate = self.rate(fraction)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate
            optimizer.step()
        keep = min(0.995, (1 + self.step_count) / (10 + self.step_count))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), self.params, 1 - keep)
        self.step_count += 1
        return torch.cat([losses, norm[None]])

    def averaged(self, quantise: bool) -> DemoModel:
        """A copy with the averaged weights, rounded as the files will hold them if `quantise`."""
        model = DemoModel().to(self.device)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(quantised(name, self.average[name]) if quantise else self.average[name])
        return model

    def remix(self, result: Result) -> None:
        """Draw more of what is still wrong."""
        for i, name in enumerate(NAMES):
            wrong = 1 - result[name][0] if name in result else 0.0
            self.mix[i] = KEPT[name] + SHARES[name] * (min(1.0, 8 * wrong) + wrong)


def table(result: Result) -> str:
    return " ".join(f"{task}={100 * exact:.1f}" for task, (exact, _) in result.items())


def final_report(trainer: Trainer, cases: int, quantise: bool) -> dict[str, object]:
    """Exact answers on the fixed test cases, in float32 without tf32."""
    ranks = trainer.ranks
    with Pool(trainer.args.workers) as pool:
        mine = [(task, cases) for task in SCORED[ranks.rank :: ranks.count]]
        drawn = pool.starmap(_final_cases, mine, chunksize=1)
    torch.set_float32_matmul_precision("highest")
    layers.set_compiling(False)
    model = trainer.averaged(quantise)
    examples = [e for part in drawn for e in part]
    with torch.no_grad():
        result = ranks.gathered(evaluate(model, examples, trainer.tokens, trainer.device, fast=False))
    for task, (exact, second) in result.items() if ranks.first else ():
        print(
            f"{task:18s} {100 * exact:6.2f} goal {100 * GOALS[task]:.0f}  mtp {100 * second:5.1f}"
            f"{'' if exact >= GOALS[task] else '  BELOW'}",
            flush=True,
        )
    return {
        "cases": cases,
        "quantised": quantise,
        "exact": {task: exact for task, (exact, _) in result.items()},
        "mtp_second_token": {task: second for task, (_, second) in result.items()},
    }


def _final_cases(task: str, count: int) -> list[Example]:
    return held_out(task, count, final=True)


def save(trainer: Trainer, folder: Path) -> None:
    """Averaged weights in float32, in shards of less than 16 MiB."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, x in trainer.average.items():
        if size + x.numel() * 4 > 15_500_000:
            shards.append({})
            size = 0
        shards[-1][name] = x.detach().cpu().contiguous()
        size += x.numel() * 4
    for i, shard in enumerate(shards):
        save_file(shard, folder / f"weights-{i}.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--resume", type=Path, nargs="*", default=[])
    parser.add_argument(
        "--checkpoint", type=Path, help="go on from this file if it exists; it is written at the end"
    )
    parser.add_argument("--lr", type=float, default=2e-3, help="AdamW: vectors, embeddings, convolutions")
    parser.add_argument("--muon-lr", type=float, default=3e-3, help="Muon: matrices")
    parser.add_argument("--decay", type=float, default=0.02, help="weight decay of the matrices")
    parser.add_argument("--decay-from", type=float, default=0.7)
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=int, default=0, help="other parts of a training draw other cases")
    parser.add_argument("--dev", type=int, default=128, help="dev cases a task")
    parser.add_argument("--every", type=float, default=60, help="seconds between evaluations")
    parser.add_argument("--cases", type=int, default=1000, help="test cases a task at the end, 0 for none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--adam", action="store_true", help="AdamW for everything")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    layers.set_compiling(not args.no_compile)
    ranks = Ranks(args.device)
    trainer = Trainer(args, ranks)
    stream = Stream(trainer.mix, args.tokens, args.part * ranks.count + ranks.rank)
    loader = iter(
        DataLoader(
            stream,
            batch_size=None,
            num_workers=args.workers,
            prefetch_factor=4 if args.workers else None,
            pin_memory=args.device == "cuda",
        )
    )
    dev = [e for task in SCORED[ranks.rank :: ranks.count] for e in held_out(task, args.dev, final=False)]

    def say(text: str) -> None:
        if ranks.first:
            print(text, flush=True)

    say(f"set up in {time.monotonic() - began:.1f} s, {len(dev)} dev cases a process")
    last_eval = time.monotonic()
    recent: list[Tensor] = []
    lengths: dict[int, int] = {}
    waited = 0.0
    marked = time.monotonic()
    while trainer.step_count < args.steps:
        now = time.monotonic()
        elapsed, since_eval = ranks.agree(now - began, now - last_eval)
        if elapsed >= args.seconds:
            break
        before = time.monotonic()
        length, batch = next(loader)
        waited += time.monotonic() - before
        lengths[length] = lengths.get(length, 0) + 1
        recent.append(trainer.step(length, batch, elapsed / args.seconds))
        if trainer.step_count in (10, 50) or trainer.step_count % 250 == 0:
            main_loss, after, norm = torch.stack(recent[-100:]).mean(0).tolist()
            now = time.monotonic()
            say(
                f"step {trainer.step_count} t {elapsed:.0f} loss {main_loss:.4f} mtp {after:.4f} norm {norm:.2f} "
                f"ms/step {(now - marked) / len(recent) * 1e3:.1f} waited {waited:.1f} lengths {lengths}"
            )
            recent, waited, marked = [], 0.0, time.monotonic()
        if dev and since_eval > args.every:
            part = evaluate(trainer.averaged(False), dev, args.tokens, trainer.device, fast=True)
            result = ranks.gathered(part)
            trainer.remix(result)
            say(f"dev at {time.monotonic() - began:.0f} s step {trainer.step_count}: {table(result)}")
            marked, recent, waited = time.monotonic(), [], 0.0
            last_eval = time.monotonic()
    say(f"trained {trainer.step_count} steps in {time.monotonic() - began:.0f} s")
    if ranks.first:
        save(trainer, args.out)
        if args.checkpoint:
            trainer.save(args.checkpoint)
    del loader
    if args.cases:
        report = final_report(trainer, args.cases, quantise=True) | {
            "steps": trainer.step_count,
            "processes": ranks.count,
        }
        if ranks.first:
            (args.out / "report.json").write_text(json.dumps(report, indent=1))
    if ranks.count > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
