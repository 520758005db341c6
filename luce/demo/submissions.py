"""A case as a request to a service, without HTTP."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from luce.actors.submission import Submission
from luce.demo.case import Case
from luce.demo.drawing import Pixels
from luce.engines.loaded import LoadedModel
from luce.sampling.parameters import SamplingParams

__all__ = ["png", "submission"]


def png(pixels: Pixels) -> bytes:
    """[h, w, 3] as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def submission(model: LoadedModel, case: Case, name: str, **sampling: Any) -> Submission:
    """The case as the HTTP layer would submit it: pictures as PNG files, messages through the template.

    Args:
        name: the request's id.
        sampling: fields of :class:`SamplingParams`; without them greedy, as long as the right answer may get, with the
            three most likely tokens at each place.
    """
    images = [model.preparer.prepare_image(png(pixels), field="messages") for pixels in case.pictures()]
    prompt = model.preparer.build(
        case.messages, images, tools=case.tools, template_kwargs={"enable_thinking": case.enable_thinking}
    )
    asked = {"temperature": 0.0, "seed": 0, "max_tokens": case.max_tokens, "logprobs": 3}
    params = SamplingParams(**(asked | sampling), eos_token_ids=model.eos_token_ids)
    return Submission(name, prompt, tuple(images), params)
