"""Metadata of a text GGUF and its mmproj to :class:`Qwen35Config` (spec qwen35 §17, §18)."""

from __future__ import annotations

from luce.engines.qwen35.config import MoeConfig, Qwen35Config, TextConfig, VisionConfig
from luce.engines.qwen35.config_checks import LIMITS, check_text, check_vision, square_side
from luce.engines.qwen35.stop_ids import VISION_TOKENS, read_token_table, stop_ids
from luce.errors import ModelFileError, quoted
from luce.weights.fields import Fields
from luce.weights.gguf_sources import TEMPORAL_PATCH_SIZE
from luce.weights.model_files import ModelFiles
from luce.weights.special_tokens import TokenTable
from luce.weights.tensor_file import TensorFile

__all__ = ["gguf_config"]

_DENSE, _MOE = "qwen35", "qwen35moe"
_TEXT_NAMES = {
    "hidden": "embedding_length",
    "key_heads": "ssm.group_count",
    "value_heads": "ssm.time_step_rank",
    "key_dim": "ssm.state_size",
    "conv_kernel": "ssm.conv_kernel",
    "max_positions": "context_length",
    "rotary_dim": "rope.dimension_count",
    "mrope_section": "rope.dimension_sections",
    "kv_heads": "attention.head_count_kv",
}
_MOE_NAMES = {
    "experts": "expert_count",
    "used": "expert_used_count",
    "ffn": "expert_feed_forward_length",
    "shared_ffn": "expert_shared_feed_forward_length",
}
_VISION_NAMES = {
    "depth": "block_count",
    "hidden": "embedding_length",
    "heads": "attention.head_count",
    "ffn": "feed_forward_length",
    "patch_size": "patch_size",
    "merge_size": "spatial_merge_size",
    "out_hidden": "projection_dim",
}


def gguf_config(files: ModelFiles) -> Qwen35Config:
    """Read and check the configuration.

    Raises:
        ModelFileError: a key is missing, out of range, contradictory or asks for what luce does not serve.
    """
    text = _text(files.text)
    vision = _vision(files.mmproj, text) if files.mmproj is not None else None
    table = read_token_table(files, text.vocab_size)
    tokenizer = files.tokenizer
    if tokenizer is not None and len(tokenizer.tokens) != text.vocab_size:
        raise ModelFileError(
            files.text.path,
            f"tokenizer.ggml.tokens has {len(tokenizer.tokens)} entries, token_embd {text.vocab_size} rows",
        )
    named = [tokenizer.eos_id] if tokenizer is not None and tokenizer.eos_id is not None else []
    image, start, end = _vision_ids(files, table) if vision is not None else (None, None, None)
    return Qwen35Config(
        text=text,
        vision=vision,
        image_token_id=image,
        vision_start_id=start,
        vision_end_id=end,
        eos_token_ids=stop_ids(files, table, text.vocab_size, named),
        num_token_ids=table.count if table is not None else None,
    )


def _scoped(file: TensorFile, prefix: str) -> Fields:
    found = {
        key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)
    }
    return Fields(file.path, found, prefix)


def _text(file: TensorFile) -> TextConfig:
    general = Fields(file.path, file.metadata)
    kind = general.text("general.architecture")
    if kind not in (_DENSE, _MOE):
        raise general.fault("general.architecture", f"{quoted(kind)} is not served; {_DENSE} and {_MOE} are")
    fields = _scoped(file, f"{kind}.")
    if kind == _DENSE:
        fields.refuse_unless("expert_count", (0,), f"a dense model has no experts; with them it is a {_MOE}")
    fields.refuse_unless("rope.scaling.type", ("none",), "no context extension is")
    fields.refuse_unless("rope.scaling.factor", (1.0, 0.0), "no context extension is")
    fields.refuse_unless("rope.mrope_interleaved", (True,), "M-RoPE sections are always interleaved")
    fields.refuse_unless("ssm.v_head_reordered", (True,), "value heads are expected in tiled order")
    blocks = fields.integer("block_count", *LIMITS["num_layers"])
    mtp_layers = fields.integer("nextn_predict_layers", *LIMITS["num_mtp_layers"], default=0)
    if mtp_layers >= blocks:
        raise fields.fault("nextn_predict_layers", f"{mtp_layers} leaves no main layer of {blocks}")
    mtp_tensor = next((name for name in file.tensors if ".nextn." in name), None)
    if mtp_tensor is not None and not mtp_layers:
        raise fields.fault("nextn_predict_layers", f"missing or 0, but the file has {quoted(mtp_tensor)}")
    recurrent = _recurrent(fields, blocks, blocks - mtp_layers)
    attending = [index for index in range(blocks) if not recurrent[index]]
    everywhere = list(range(blocks))
    sizes = {key: fields.integer(_TEXT_NAMES[key], *LIMITS[key]) for key in _SCALAR_KEYS}
    inner = fields.integer("ssm.inner_size", 1, 1 << 20)
    if inner % sizes["value_heads"]:
        raise fields.fault("ssm.inner_size", f"{inner} is not a multiple of ssm.time_step_rank")
    head_dim = fields.integer("attention.key_length", *LIMITS["head_dim"])
    if fields.integer("attention.value_length", *LIMITS["head_dim"]) != head_dim:
        raise fields.fault("attention.value_length", f"is not attention.key_length, {head_dim}")
    section = fields.integers("rope.dimension_sections", 0, 512)
    if len(section) not in (3, 4) or any(section[3:]):
        raise fields.fault("rope.dimension_sections", f"{quoted(section)} is not [t, h, w] or [t, h, w, 0]")
    text = TextConfig(
        **sizes,
        vocab_size=_vocab_size(file, fields),
        num_layers=blocks - mtp_layers,
        ffn=_per_layer(fields, "feed_forward_length", blocks, everywhere, LIMITS["ffn"])
        if kind == _DENSE
        else 0,
        heads=_per_layer(fields, "attention.head_count", blocks, attending, LIMITS["heads"]),
        kv_heads=_per_layer(fields, "attention.head_count_kv", blocks, attending, LIMITS["kv_heads"]),
        head_dim=head_dim,
        value_dim=inner // sizes["value_heads"],
        full_attention=tuple(not one for one in recurrent[: blocks - mtp_layers]),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-12, 1e-2),
        rope_theta=fields.number("rope.freq_base", 1.0, 1e12),
        mrope_section=(section[0], section[1], section[2]),
        tied="output.weight" not in file.tensors,
        # derivatives may declare the MTP block and drop its tensors
        num_mtp_layers=mtp_layers if mtp_tensor is not None else 0,
        moe=_moe(fields) if kind == _MOE else None,
    )
    check_text(text, fields, _TEXT_NAMES | {"moe.used": _MOE_NAMES["used"]})
    return text


def _moe(fields: Fields) -> MoeConfig:
    fields.refuse_unless("expert_gating_func", (_SOFTMAX,), "experts are chosen by softmax")
    fields.refuse_unless("expert_weights_norm", (True,), "the weights of the chosen experts always sum to 1")
    fields.refuse_unless(
        "expert_weights_scale", (1.0, 0.0), "the weights of the chosen experts always sum to 1"
    )
    fields.refuse_unless("expert_group_count", (0, 1), "experts are chosen among all of them")
    fields.refuse_unless("leading_dense_block_count", (0,), "every layer is a mixture of experts")
    return MoeConfig(**{key: fields.integer(name, *LIMITS[f"moe.{key}"]) for key, name in _MOE_NAMES.items()})


_SOFTMAX = 1
"""llama.cpp's number of it."""
_SCALAR_KEYS = ("hidden", "key_heads", "value_heads", "key_dim", "conv_kernel", "max_positions", "rotary_dim")


def _recurrent(fields: Fields, blocks: int, main: int) -> list[bool]:
    """Per block: is it a DeltaNet layer? MTP blocks are full attention."""
    if fields.has("attention.recurrent_layers"):
        found = fields.array("attention.recurrent_layers", blocks)
        if not all(isinstance(one, bool) for one in found):
            raise fields.fault("attention.recurrent_layers", "is not a list of bools")
    else:
        interval = fields.integer("full_attention_interval", 1, 512)
        found = [(index + 1) % interval != 0 for index in range(blocks)]
    return [one and index < main for index, one in enumerate(found)]


def _per_layer(fields: Fields, name: str, blocks: int, counted: list[int], limits: tuple[int, int]) -> int:
    """A number, or one per block; blocks that have no use for it may hold anything (usually 0)."""
    if not fields.has(name) or type(fields.values[name]) is int:
        return fields.integer(name, *limits)
    entries = fields.array(name, blocks)
    found = sorted({quoted(entries[index]) for index in counted})
    if len(found) != 1:
        raise fields.fault(name, f"differs between layers ({', '.join(found[:4]) or 'no layer uses it'})")
    low, high = limits
    value = entries[counted[0]]
    if type(value) is not int or not low <= value <= high:
        raise fields.fault(name, f"{found[0]} is not in {low} … {high}")
    return value


def _vocab_size(file: TensorFile, fields: Fields) -> int:
    info = file.tensors.get("token_embd.weight")
    if info is None:
        raise ModelFileError(file.path, "missing", tensor="token_embd.weight")
    low, high = LIMITS["vocab_size"]
    if len(info.shape) != 2 or not low <= info.shape[0] <= high:
        raise ModelFileError(
            file.path, f"has shape {list(info.shape)}, expected [vocabulary, hidden]", tensor=info.name
        )
    if fields.integer("vocab_size", low, high, default=info.shape[0]) != info.shape[0]:
        raise fields.fault("vocab_size", f"is not the number of token_embd rows, {info.shape[0]}")
    return info.shape[0]


def _vision(file: TensorFile, text: TextConfig) -> VisionConfig:
    clip = _scoped(file, "clip.")
    if not clip.flag("has_vision_encoder"):
        raise clip.fault("has_vision_encoder", "is false: there is no vision tower in it")
    fields = _scoped(file, "clip.vision.")
    owner = fields if fields.has("projector_type") else clip
    kind = owner.text("projector_type")
    if kind != "qwen3vl_merger":
        raise owner.fault("projector_type", f"{quoted(kind)} is not served; qwen3vl_merger is")
    clip.refuse_unless("use_gelu", (True,), "only GELU is")
    clip.refuse_unless("use_silu", (False,), "only GELU is")
    if any(fields.array("is_deepstack_layers", default=[])):
        raise fields.fault("is_deepstack_layers", "extra image features per layer are not served")
    sizes = {key: fields.integer(name, *LIMITS[f"vision.{key}"]) for key, name in _VISION_NAMES.items()}
    vision = VisionConfig(
        **sizes,
        temporal_patch_size=TEMPORAL_PATCH_SIZE,
        grid_side=_grid_side(file, fields, sizes["patch_size"]),
        layer_norm_eps=fields.number("attention.layer_norm_epsilon", 1e-12, 1e-2),
    )
    check_vision(vision, text, fields, _VISION_NAMES)
    return vision


def _grid_side(file: TensorFile, fields: Fields, patch_size: int) -> int:
    info = file.tensors.get("v.position_embd.weight")
    if info is None:
        raise ModelFileError(file.path, "missing", tensor="v.position_embd.weight")
    side = square_side(info.shape[0])
    if side is None:
        raise ModelFileError(file.path, f"has {info.shape[0]} rows, not a square", tensor=info.name)
    if fields.integer("image_size", 1, 1 << 20) != side * patch_size:
        raise fields.fault(
            "image_size",
            f"{fields.values['image_size']} is not {side} patches of {patch_size}, as v.position_embd has",
        )
    return side


def _vision_ids(files: ModelFiles, table: TokenTable | None) -> tuple[int, ...]:
    tokenizer = files.require_tokenizer()
    found = []
    for name in VISION_TOKENS:
        index = table.added.get(name) if table is not None else None
        if index is None and not tokenizer.token_types and name in tokenizer.tokens:
            index = tokenizer.tokens.index(name)
        if index is None:
            raise ModelFileError(
                files.text.path, f"tokenizer.ggml.tokens: {name} is missing as a control token"
            )
        found.append(index)
    return tuple(found)
