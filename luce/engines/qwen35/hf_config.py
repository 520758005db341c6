"""``config.json`` of a Hugging Face directory to :class:`Qwen35Config` (spec qwen35 §1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from luce.engines.qwen35.config import MoeConfig, Qwen35Config, TextConfig, VisionConfig
from luce.engines.qwen35.config_checks import LIMITS, check_text, check_vision, square_side
from luce.engines.qwen35.stop_ids import VISION_TOKENS, read_token_table, stop_ids
from luce.errors import quoted
from luce.weights.fields import Fields
from luce.weights.hf_sources import id_list
from luce.weights.model_files import ModelFiles

__all__ = ["hf_config"]

_MOE = "qwen3_5_moe"
_TEXT_NAMES = {
    "vocab_size": "vocab_size",
    "hidden": "hidden_size",
    "num_layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
    "key_dim": "linear_key_head_dim",
    "value_dim": "linear_value_head_dim",
    "conv_kernel": "linear_conv_kernel_dim",
    "max_positions": "max_position_embeddings",
}
_FFN_NAME = "intermediate_size"
_MOE_NAMES = {
    "experts": "num_experts",
    "used": "num_experts_per_tok",
    "ffn": "moe_intermediate_size",
    "shared_ffn": "shared_expert_intermediate_size",
}
_VISION_NAMES = {
    "depth": "depth",
    "hidden": "hidden_size",
    "heads": "num_heads",
    "ffn": "intermediate_size",
    "patch_size": "patch_size",
    "temporal_patch_size": "temporal_patch_size",
    "merge_size": "spatial_merge_size",
    "out_hidden": "out_hidden_size",
}
_ROPE_KEYS = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "mrope_section",
    "mrope_interleaved",
}
_TOKEN_FIELDS = ("image_token_id", "vision_start_token_id", "vision_end_token_id")


def hf_config(files: ModelFiles) -> Qwen35Config:
    """Read and check the configuration.

    Raises:
        ModelFileError: a field is missing, out of range, contradictory or asks for what luce does not serve.
    """
    top = Fields(files.config_path, files.config)
    text_fields = _text_fields(top)
    text = _text(top, text_fields, files)
    vision = _vision(top, text)
    table = read_token_table(files, text.vocab_size)
    named = (*files.generation.eos_token_ids, *id_list(text_fields, "eos_token_id"))
    ids = _vision_ids(top, text, vision is not None)
    if table is not None:
        for field, name in zip(_TOKEN_FIELDS, VISION_TOKENS, strict=True):
            expected = table.added.get(name)
            if ids[field] is not None and expected is not None and ids[field] != expected:
                raise top.fault(field, f"{ids[field]}, but the tokenizer gives {name} the id {expected}")
    return Qwen35Config(
        text=text,
        vision=vision,
        image_token_id=ids["image_token_id"],
        vision_start_id=ids["vision_start_token_id"],
        vision_end_id=ids["vision_end_token_id"],
        eos_token_ids=stop_ids(files, table, text.vocab_size, named),
        num_token_ids=table.count if table is not None else None,
    )


def _text_fields(top: Fields) -> Fields:
    """The text part: ``text_config``, or the whole file of a text-only export."""
    kind = top.text("model_type")
    family = kind.removesuffix("_text")
    if family not in ("qwen3_5", _MOE):
        raise top.fault("model_type", f"{quoted(kind)} is not served; qwen3_5 and {_MOE} are")
    fields = top.child("text_config") if kind == family else top
    if fields is not top:
        fields.refuse_unless(
            "model_type", (f"{family}_text",), f"the text model of {family} is {family}_text"
        )
    for part in (top, fields):
        if part.has("quantization_config"):
            method = part.child("quantization_config").value("quant_method", "unknown")
            raise part.fault(
                "quantization_config",
                f"quantised safetensors (method {quoted(method)}) are not served; use bf16 weights or a GGUF",
            )
    return fields


def _text(top: Fields, fields: Fields, files: ModelFiles) -> TextConfig:
    fields.refuse_unless("hidden_act", ("silu",), "only silu is")
    fields.refuse_unless("attention_bias", (False,), "the model has no attention biases")
    fields.refuse_unless("attn_output_gate", (True,), "attention is always gated")
    fields.refuse_unless("output_gate_type", ("swish", "silu"), "the DeltaNet gate is silu")
    fields.refuse_unless("mamba_ssm_dtype", ("float32",), "the recurrent state is float32")
    fields.refuse_unless("mtp_use_dedicated_embeddings", (False,), "the MTP block shares the embedding")
    fields.refuse_unless("use_sliding_window", (False,), "attention is over the whole context")
    sizes = {key: fields.integer(name, *LIMITS[key]) for key, name in _TEXT_NAMES.items()}
    moe = _moe(fields) if top.text("model_type").startswith(_MOE) else None
    if moe is None and fields.has("num_experts"):
        raise fields.fault("num_experts", f"a dense model has no experts; with them it is a {_MOE}")
    mtp_layers = fields.integer("mtp_num_hidden_layers", *LIMITS["num_mtp_layers"], default=0)
    rope = _rope(fields)
    section = rope.integers("mrope_section", 0, 512, 3)
    text = TextConfig(
        **sizes,
        ffn=fields.integer(_FFN_NAME, *LIMITS["ffn"]) if moe is None else 0,
        full_attention=_layer_types(fields, sizes["num_layers"]),
        rms_eps=fields.number("rms_norm_eps", 1e-12, 1e-2),
        rope_theta=rope.number("rope_theta", 1.0, 1e12),
        rotary_dim=int(sizes["head_dim"] * rope.number("partial_rotary_factor", 0.0, 1.0)),
        mrope_section=(section[0], section[1], section[2]),
        tied=_tied(top, fields, files),
        # derivatives often declare the MTP block and drop its tensors
        num_mtp_layers=mtp_layers if any(name.startswith("mtp.") for name in files.text.tensors) else 0,
        moe=moe,
    )
    names = _TEXT_NAMES | {
        "moe.used": _MOE_NAMES["used"],
        "rotary_dim": "rope_parameters.partial_rotary_factor",
        "mrope_section": "rope_parameters.mrope_section",
    }
    check_text(text, fields, names)
    return text


def _moe(fields: Fields) -> MoeConfig:
    fields.refuse_unless("norm_topk_prob", (True,), "the weights of the chosen experts always sum to 1")
    fields.refuse_unless("mlp_only_layers", ([],), "every layer is a mixture of experts")
    fields.refuse_unless("decoder_sparse_step", (1,), "every layer is a mixture of experts")
    return MoeConfig(**{key: fields.integer(name, *LIMITS[f"moe.{key}"]) for key, name in _MOE_NAMES.items()})


def _rope(fields: Fields) -> Fields:
    """RoPE settings in the new spelling (``rope_parameters``) or the old (``rope_scaling`` and beside it)."""
    old: dict[str, Any] = {}
    if fields.has("rope_scaling"):
        old |= fields.child("rope_scaling").values
    old |= {name: fields.values[name] for name in ("rope_theta", "partial_rotary_factor") if fields.has(name)}
    found = dict(fields.child("rope_parameters").values) if fields.has("rope_parameters") else {}
    spelling = "rope_parameters" if fields.has("rope_parameters") or not old else "rope_scaling"
    for name, value in old.items():
        if found.setdefault(name, value) != value:
            raise fields.fault(
                f"rope_parameters.{name}", f"{quoted(found[name])}, but {quoted(value)} in the old spelling"
            )
    rope = attrs.evolve(fields, values=found, prefix=f"{fields.prefix}{spelling}.")
    for name in ("rope_type", "type"):
        rope.refuse_unless(name, ("default",), "no context extension is (only 'default')")
    if not rope.has("rope_type") and not rope.has("type"):
        raise rope.fault("rope_type", "missing")
    unknown = sorted(set(found) - _ROPE_KEYS)
    if unknown:
        raise rope.fault(unknown[0], "is not supported (an unknown setting could change every position)")
    rope.refuse_unless("mrope_interleaved", (True,), "M-RoPE sections are always interleaved")
    return rope


def _layer_types(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    if not fields.has("layer_types"):
        interval = fields.integer("full_attention_interval", 1, 512, default=4)
        return tuple((index + 1) % interval == 0 for index in range(num_layers))
    kinds = fields.array("layer_types", num_layers)
    for index, kind in enumerate(kinds):
        if kind not in ("linear_attention", "full_attention"):
            raise fields.fault(f"layer_types[{index}]", f"{quoted(kind)} is not served")
    return tuple(kind == "full_attention" for kind in kinds)


def _tied(top: Fields, fields: Fields, files: ModelFiles) -> bool:
    """Does the head share the embedding? A head in the file wins over the flag (spec qwen35 §9)."""
    owner = top if top.has("tie_word_embeddings") else fields
    return owner.flag("tie_word_embeddings") and "lm_head.weight" not in files.text.tensors


def _vision(top: Fields, text: TextConfig) -> VisionConfig | None:
    if not top.has("vision_config"):
        return None
    fields = top.child("vision_config")
    if fields.array("deepstack_visual_indexes", default=[]):
        raise fields.fault("deepstack_visual_indexes", "extra image features per layer are not served")
    fields.refuse_unless("hidden_act", ("gelu_pytorch_tanh",), "only gelu_pytorch_tanh is")
    fields.refuse_unless("in_channels", (3,), "pictures have 3 channels")
    sizes = {key: fields.integer(name, *LIMITS[f"vision.{key}"]) for key, name in _VISION_NAMES.items()}
    rows = fields.integer("num_position_embeddings", 1, 1 << 20)
    side = square_side(rows)
    if side is None:
        raise fields.fault("num_position_embeddings", f"{rows} is not a square")
    vision = VisionConfig(**sizes, grid_side=side)
    check_vision(vision, text, fields, _VISION_NAMES)
    return vision


def _vision_ids(top: Fields, text: TextConfig, needed: bool) -> Mapping[str, int | None]:
    if not needed:
        return dict.fromkeys(_TOKEN_FIELDS)
    found = {name: top.integer(name, 0, text.vocab_size - 1) for name in _TOKEN_FIELDS}
    if len(set(found.values())) != len(found):
        raise top.fault("image_token_id", f"the three vision ids {list(found.values())} are not distinct")
    return found
