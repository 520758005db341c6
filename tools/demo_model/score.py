"""Scores a Hugging Face directory of the demo model on the fixed test cases with the compact torch model.

    python -m tools.demo_model.score DIR [--tasks describe copy] [--cases 1000] [--device cuda] [--json FILE]

One forward pass a case in float32: the answer is exact when the greedy token is right at every place of it, which is
when greedy decoding writes exactly that answer.  luce/demo/evaluate.py scores a running server the long way.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from luce.demo.tasks import GOALS, SCORED, TEST_CASES
from tools.demo_model.data import held_out
from tools.demo_model.model import DemoModel
from tools.demo_model.train import evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(SCORED), choices=SCORED)
    parser.add_argument("--cases", type=int, default=TEST_CASES)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a batch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = DemoModel().to(args.device)
    model.load_state_dict(load_file(args.folder / "model.safetensors"))
    exact: dict[str, float] = {}
    for task in args.tasks:
        examples = held_out(task, args.cases, final=True)
        with torch.no_grad():
            result = evaluate(model, examples, args.tokens, torch.device(args.device), fast=False)
        exact[task], second = result[task]
        mark = "" if exact[task] >= GOALS[task] else "  below"
        print(
            f"{task:18s} {100 * exact[task]:6.2f} goal {100 * GOALS[task]:.0f}  mtp {100 * second:5.1f}{mark}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps({"cases": args.cases, "exact": exact}, indent=1))


if __name__ == "__main__":
    main()
