"""Compares the compact training model with the reference classes of transformers on the same weights.

    python -m tools.demo_model.check DIR [--cases 1] [--generate]

DIR is a Hugging Face directory made by tools/demo_model/export.py.  For a case of each task the logits at every
position are compared in float32, and with --generate the reference's own greedy answer with the right one.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional as fn
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from luce.demo.drawing import SIZES
from luce.demo.tasks import TASKS, make_case
from tools.demo_model.data import LENGTHS, collate, example
from tools.demo_model.model import DemoModel
from tools.demo_model.text import IM_END, IMAGE_PAD, tokenizer


def reference(folder: Path) -> Qwen3_5ForConditionalGeneration:
    config = Qwen3_5Config.from_pretrained(folder)
    config._attn_implementation = "eager"
    model = Qwen3_5ForConditionalGeneration(config).float().eval()
    state = {k: v for k, v in load_file(folder / "model.safetensors").items() if not k.startswith("mtp.")}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=1)
    parser.add_argument("--generate", action="store_true")
    args = parser.parse_args()
    theirs = reference(args.folder)
    ours = DemoModel().eval()
    ours.load_state_dict(load_file(args.folder / "model.safetensors"))
    worst, wrong, count = 0.0, 0, 0
    for task in TASKS:
        for index in range(args.cases):
            case = make_case(task, index, test=True)
            item = example(case)
            if item.length > 1024:
                continue
            length = next(n for n in LENGTHS if item.length <= n)
            batch = collate([item], length, length, slots=max(1, len(item.pictures)))
            ids = torch.tensor([(item.prompt + item.completion)[: item.length]])
            inputs: dict[str, torch.Tensor] = {}
            if item.pictures:
                rows = [
                    np.repeat(p.reshape(-1, 3, 1, 256), 2, axis=2).reshape(-1, 1536) for p in item.pictures
                ]
                inputs["pixel_values"] = torch.from_numpy(np.concatenate(rows)).float() / 127.5 - 1
                grids = [(1, SIZES[s][1] // 16, SIZES[s][0] // 16) for s in item.sizes]
                inputs["image_grid_thw"] = torch.tensor(grids)
            kinds = {"mm_token_type_ids": (ids == IMAGE_PAD).int()}
            with torch.no_grad():
                right = theirs(input_ids=ids, **inputs, **kinds).logits[0]
                hidden, _, _ = ours.hidden(batch, 1)
                mine = fn.linear(hidden, ours.model.language_model.embed_tokens.weight)[: item.length]
            error = (mine - right).abs().max().item()
            worst = max(worst, error)
            line = (
                f"{task:18s} {item.length:5d} tokens  logits differ by {error:.2e} of {right.abs().max():.1f}"
            )
            if args.generate:
                prompt = ids[:, : len(item.prompt)]
                with torch.no_grad():
                    made = theirs.generate(
                        input_ids=prompt,
                        mm_token_type_ids=kinds["mm_token_type_ids"][:, : len(item.prompt)],
                        **inputs,
                        max_new_tokens=len(item.completion) + 4,
                        do_sample=False,
                        eos_token_id=IM_END,
                    )[0, len(item.prompt) :].tolist()
                count += 1
                if made != item.completion:
                    wrong += 1
                    line += f"\n    wanted {case.completion!r}\n    got    {tokenizer().decode(made)!r}"
            print(line, flush=True)
    print(f"worst difference {worst:.2e}" + (f", {count - wrong} of {count} answers right" if count else ""))


if __name__ == "__main__":
    main()
