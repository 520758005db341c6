"""How tokens are chosen where a request does not say: by the operator's flags, else the model's own files, else what
its family recommends, else luce's built-in values. Every value knows who said it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from luce.errors import ModelFileError, RequestError
from luce.sampling.parameters import SamplingParams
from luce.weights.model_files import FileForm, ModelFiles

__all__ = ["BUILT_IN", "GenerationDefaults", "Sampling", "sampling_defaults"]

Sampling = Mapping[str, float | int]
"""Some fields of :class:`GenerationDefaults` by name."""

BUILT_IN = "built-in"

_GGUF_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Below ``general.sampling.``; files say nothing of the other fields."""


@attrs.frozen
class GenerationDefaults:
    """Values of :class:`luce.sampling.parameters.SamplingParams`, in its units."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    sources: Mapping[str, str] = attrs.field(factory=dict)
    """Who said so, by field: a flag, a key of a file, a family; :data:`BUILT_IN` for those that are not in it."""

    @property
    def values(self) -> Sampling:
        """By field."""
        return {name: getattr(self, name) for name in FIELDS}

    def source(self, field: str) -> str:
        return self.sources.get(field, BUILT_IN)

    def lines(self) -> list[str]:
        """A line for each, with its source."""
        return [f"{name:<19} {value:<6g} {self.source(name)}" for name, value in self.values.items()]


FIELDS = tuple(field.name for field in attrs.fields(GenerationDefaults) if field.name != "sources")


def sampling_defaults(
    flags: Sampling, files: ModelFiles, family: Sampling, family_name: str
) -> GenerationDefaults:
    """What is in force on a server.

    Args:
        flags: checked.
        files: the model's. A recommendation not to sample is temperature 0.
        family: what models of this family recommend where their files say nothing.

    Raises:
        ModelFileError: the files recommend what no request may ask for; names the key.
    """
    said = {name: (value, f"the family's ({family_name})") for name, value in family.items()}
    hugging_face = files.form is FileForm.HUGGING_FACE
    for name, key in _GGUF_KEYS.items():
        if (value := getattr(files.generation, name)) is not None:
            where = f"generation_config.json: {name}" if hugging_face else f"general.sampling.{key}"
            _check(files, name, value, where)
            said[name] = (value, where)
    if files.generation.do_sample is False:
        said["temperature"] = (0.0, "generation_config.json: do_sample false")
    for name, value in flags.items():
        said[name] = (value, f"--{name.replace('_', '-')}")
    values: dict[str, Any] = {name: value for name, (value, _) in said.items()}
    return GenerationDefaults(**values, sources={name: where for name, (_, where) in said.items()})


def _check(files: ModelFiles, name: str, value: float | int, where: str) -> None:
    """Or every request that does not say otherwise would be refused."""
    fields: dict[str, Any] = {name: value}
    try:
        SamplingParams(**fields).validate(vocab_size=1)
    except RequestError as error:
        raise ModelFileError(files.path, f"{where}: {error.message}") from None
