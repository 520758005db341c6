"""Writes the demo model's files.

    python -m tools.demo_model.export gguf WEIGHTS... [--out luce/demo/model]
    python -m tools.demo_model.export hf [--model luce/demo/model] --out DIR

`gguf` makes the pair that the package ships from training weights (safetensors shards with checkpoint names).
`hf` makes a Hugging Face directory from the pair: the tensors are the dequantised values of the GGUF files, so both
forms give the same answers bit for bit in float32.  Neither needs torch.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

from tools.demo_model import config as c
from tools.demo_model.tensor_map import Tensors, from_gguf, to_gguf
from tools.demo_model.text import (
    ADDED_TOKENS,
    BASE_PIECES,
    END_OF_TEXT,
    IM_END,
    MASK_ID,
    SPLIT_PATTERN,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    VOCAB_SIZE,
)

NAME = "luce-demo"
SHIPPED = Path(__file__).parents[2] / "luce" / "demo" / "model"
Quant = gguf.GGMLQuantizationType


def text_type(name: str, x: np.ndarray) -> Quant:
    """Q8_0 for the matrices; float32 for vectors, the convolution and the small beta and alpha projections."""
    small = x.ndim == 1 or "ssm_conv1d" in name or "ssm_alpha" in name or "ssm_beta" in name
    return Quant.F32 if small else Quant.Q8_0


def vision_type(name: str, x: np.ndarray) -> Quant:
    return Quant.F32 if x.ndim == 1 or "position_embd" in name else Quant.F16


def rounded(text: Tensors, vision: Tensors) -> tuple[Tensors, Tensors]:
    """The float32 values that the files will hold."""

    def through(x: np.ndarray, kind: Quant) -> np.ndarray:
        return gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind).astype(np.float32)

    return (
        {name: through(x, text_type(name, x)) for name, x in text.items()},
        {name: through(x, vision_type(name, x)) for name, x in vision.items()},
    )


def _add_tensors(writer: gguf.GGUFWriter, tensors: Tensors, kind_of: Any) -> None:
    for name, x in tensors.items():
        kind = kind_of(name, x)
        data = gguf.quants.quantize(x, kind)
        writer.add_tensor(name, data, raw_dtype=kind if kind == Quant.Q8_0 else None)


def _close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    model = json.loads(TOKENIZER_FILE.read_text())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    assert len(pieces) == BASE_PIECES, len(pieces)
    kinds = [gguf.TokenType.NORMAL] * BASE_PIECES
    for name, special in ADDED_TOKENS:
        pieces.append(name)
        kinds.append(gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED)
    pieces.append(f"[PAD{MASK_ID}]")
    kinds.append(gguf.TokenType.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    writer.add_bos_token_id(END_OF_TEXT)
    writer.add_eos_token_id(IM_END)
    writer.add_pad_token_id(END_OF_TEXT)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE_FILE.read_text())


def write_text(path: Path, tensors: Tensors) -> None:
    """The text model: spec section 17."""
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_type("model")
    writer.add_name(NAME)
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(c.LAYERS + 1)
    writer.add_uint32("qwen35.nextn_predict_layers", 1)
    writer.add_context_length(c.CONTEXT)
    writer.add_embedding_length(c.HIDDEN)
    writer.add_feed_forward_length(c.FFN)
    writer.add_head_count(c.HEADS)
    writer.add_head_count_kv(c.KV_HEADS)
    writer.add_key_length(c.HEAD_DIM)
    writer.add_value_length(c.HEAD_DIM)
    writer.add_layer_norm_rms_eps(c.EPS)
    writer.add_rope_freq_base(c.THETA)
    writer.add_rope_dimension_count(c.ROTARY)
    writer.add_rope_dimension_sections([*c.SECTIONS, 0])
    writer.add_ssm_conv_kernel(c.CONV)
    writer.add_ssm_state_size(c.GDN_DIM)
    writer.add_ssm_group_count(c.GDN_KEY_HEADS)
    writer.add_ssm_time_step_rank(c.GDN_VALUE_HEADS)
    writer.add_ssm_inner_size(c.GDN_VALUE_HEADS * c.GDN_DIM)
    writer.add_uint32("qwen35.full_attention_interval", c.FULL_INTERVAL)
    writer.add_float32(
        "general.sampling.temp", 0.0
    )  # as generation_config: the model is meant to be run greedily
    _add_tokenizer(writer)
    _add_tensors(writer, tensors, text_type)
    _close(writer)


def write_vision(path: Path, tensors: Tensors) -> None:
    """The vision tower: spec section 18."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name(NAME)
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    writer.add_bool("clip.use_gelu", True)
    writer.add_uint32("clip.vision.image_size", int(c.POSITIONS**0.5) * c.PATCH)
    writer.add_uint32("clip.vision.patch_size", c.PATCH)
    writer.add_uint32("clip.vision.embedding_length", c.VISION_HIDDEN)
    writer.add_uint32("clip.vision.feed_forward_length", c.VISION_FFN)
    writer.add_uint32("clip.vision.block_count", c.VISION_DEPTH)
    writer.add_uint32("clip.vision.projection_dim", c.HIDDEN)
    writer.add_uint32("clip.vision.spatial_merge_size", c.MERGE)
    writer.add_uint32("clip.vision.attention.head_count", c.VISION_HEADS)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.is_deepstack_layers", [False] * c.VISION_DEPTH)
    writer.add_uint32("clip.vision.image_min_pixels", c.MIN_PIXELS)
    writer.add_uint32("clip.vision.image_max_pixels", c.MAX_PIXELS)
    _add_tensors(writer, tensors, vision_type)
    _close(writer)


def write_pair(state: Tensors, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text, vision = to_gguf(state)
    write_text(folder / f"{NAME}.gguf", text)
    write_vision(folder / f"mmproj-{NAME}.gguf", vision)


def read_pair(folder: Path) -> tuple[Tensors, gguf.GGUFReader]:
    """The checkpoint tensors of a GGUF pair, float32, and the text file's reader for its metadata."""

    def tensors(reader: gguf.GGUFReader) -> Tensors:
        return {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(t.shape[::-1])
            for t in reader.tensors
        }

    text, vision = gguf.GGUFReader(folder / f"{NAME}.gguf"), gguf.GGUFReader(folder / f"mmproj-{NAME}.gguf")
    return from_gguf(tensors(text), tensors(vision)), text


def tokenizer_json(tokens: list[str], merges: list[str]) -> dict[str, Any]:
    """tokenizer.json in the released form, from the vocabulary of a GGUF file."""
    pattern = {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = [
        {
            "id": BASE_PIECES + index,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": special,
        }
        for index, (name, special) in enumerate(ADDED_TOKENS)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [pattern, byte_level]},
        "post_processor": byte_level | {"trim_offsets": False},
        "decoder": byte_level | {"trim_offsets": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: index for index, piece in enumerate(tokens[:BASE_PIECES])},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def tokenizer_config(template: str) -> dict[str, Any]:
    """tokenizer_config.json with the chat template."""
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(BASE_PIECES + index): {
                "content": name,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": special,
            }
            for index, (name, special) in enumerate(ADDED_TOKENS)
        },
        "additional_special_tokens": [name for name, special in ADDED_TOKENS[1:] if special],
        "bos_token": None,
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": c.CONTEXT,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def write_hf(pair: Path, folder: Path) -> None:
    """A Hugging Face directory with the values of the GGUF pair."""
    state, reader = read_pair(pair)
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    merges = reader.get_field("tokenizer.ggml.merges").contents()
    template = reader.get_field("tokenizer.chat_template").contents()
    assert len(tokens) == VOCAB_SIZE, len(tokens)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    files = {
        "config.json": c.hf_config(),
        "generation_config.json": c.generation_config(),
        "preprocessor_config.json": c.preprocessor_config(),
        "tokenizer.json": tokenizer_json(tokens, merges),
        "tokenizer_config.json": tokenizer_config(template),
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    (folder / "chat_template.jinja").write_text(template)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("gguf")
    make.add_argument("weights", type=Path, nargs="+")
    make.add_argument("--out", type=Path, default=SHIPPED)
    hf = verbs.add_parser("hf")
    hf.add_argument("--model", type=Path, default=SHIPPED)
    hf.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.verb == "gguf":
        write_pair({k: v for shard in args.weights for k, v in load_file(shard).items()}, args.out)
    else:
        write_hf(args.model, args.out)


if __name__ == "__main__":
    main()
