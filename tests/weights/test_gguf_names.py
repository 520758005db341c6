"""GGUF names against the ``gguf`` package's own tables: a second source beside the specification."""

from __future__ import annotations

import gguf
import pytest

from tests.weights.gguf_writers import gguf_metadata, hf_to_gguf, mmproj_metadata, mmproj_tensors
from tests.weights.writers import TinyShape, random_model

MODEL = random_model(TinyShape())
MOE = random_model(TinyShape(experts=3))


def mapped(arch: gguf.MODEL_ARCH, name: str) -> str | None:
    return gguf.get_tensor_name_map(arch, 5).get_name(name, try_suffixes=(".weight", ".bias"))


@pytest.mark.parametrize(
    "name", [name for name in MODEL.tensors if not name.startswith(("mtp.", "model.visual."))]
)
def test_text_names(name: str) -> None:
    ours, _ = hf_to_gguf(name, MODEL.tensors[name], MODEL.shape)
    # the converter renames two prefixes before it asks the table
    renamed = name.replace("model.language_model.", "model.").replace("dt_bias", "dt_proj.bias")
    assert mapped(gguf.MODEL_ARCH.QWEN35, renamed) == ours


@pytest.mark.parametrize(
    "name",
    [name for name in MOE.tensors if ".mlp." in name and not name.startswith(("mtp.", "model.visual."))],
)
def test_names_of_experts(name: str) -> None:
    ours, _ = hf_to_gguf(name, MOE.tensors[name], MOE.shape)
    renamed = name.replace("model.language_model.", "model.")
    theirs = mapped(gguf.MODEL_ARCH.QWEN35MOE, renamed)
    # tensors of all experts have no suffix there; the converter gives them one
    assert theirs == ours or f"{theirs}.weight" == ours


def test_vision_names() -> None:
    """The merger is not in the package's table: converters name it in code (``v.post_ln``, ``mm.0``, ``mm.2``)."""
    names = [name.removeprefix("model.") for name in MODEL.tensors if name.startswith("model.visual.")]
    theirs = {mapped(gguf.MODEL_ARCH.MMPROJ, name) for name in names if "merger" not in name}
    merger = {f"{name}.{kind}" for name in ("v.post_ln", "mm.0", "mm.2") for kind in ("weight", "bias")}
    assert theirs | merger | {"v.patch_embd.weight.1"} == set(mmproj_tensors(MODEL))


def key_names(group: type) -> set[str]:
    found = set()
    for value in vars(group).values():
        if isinstance(value, str):
            found |= {value.replace("{arch}", name) for name in ("qwen35", "qwen35moe")}
        elif isinstance(value, type):
            found |= key_names(value)
    return found


def test_metadata_keys() -> None:
    known = key_names(gguf.Keys)
    keys = {*gguf_metadata(MODEL), *gguf_metadata(MOE), *mmproj_metadata(MODEL)}
    assert keys - known == set()
