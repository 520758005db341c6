"""What `luce serve` says at its start: the model, the memory plan, the address."""

from __future__ import annotations

from luce.actors.budgets import park_budget
from luce.actors.options import ServiceOptions
from luce.engines.load_model import OpenedModel
from luce.engines.qwen35.memory import size_lines
from luce.engines.seam import Capabilities

__all__ = ["describe", "describe_budgets", "greeting"]


def describe(model: OpenedModel) -> list[str]:
    """What is going to be served and what it takes."""
    plan = model.plan.options
    images = "text and pictures" if model.config.vision is not None else "text only"
    lines = [
        f"model {model.name} from {model.files.path} ({model.files.form.value}), {images}",
        f"{plan.slots} slots of {model.context} tokens, {plan.blocks} blocks of {plan.block_size}",
    ]
    if model.config.vision is not None:
        lines.append(f"pictures of up to {model.decode_limits.max_pixels:,} pixels (--max-image-pixels)")
    lines += [
        "sampling where a request does not say, and who says so instead:",
        *(f"  {line}" for line in model.defaults.lines()),
        "memory:",
    ]
    return lines + [f"  {line}" for line in model.plan.lines()]


def describe_budgets(options: ServiceOptions, capabilities: Capabilities) -> list[str]:
    """What serving may take on top of the plan, little by little. ``options`` are :func:`settled`."""
    park = park_budget(options.park_bytes, capabilities)
    detail = "--park-memory" if options.park_bytes is not None else "--park-memory: a quarter of what is free"
    rows = [
        ("pictures kept", options.image_bytes or 0, "--image-memory"),
        ("prefixes kept", options.prefix_bytes or 0, "--prefix-memory"),
        ("parked requests", park, detail),
    ]
    return ["later, on top of the plan, at most:", *(f"  {line}" for line in size_lines(rows))]


def greeting(
    model: OpenedModel, address: tuple[str, int], keys: int = 0, *, secure: bool = False
) -> list[str]:
    """The URL, and a request that can be pasted, once a variable holds one of the ``keys`` that are set."""
    host, port = address
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http{'s' if secure else ''}://{shown}:{port}"
    body = f'{{"model": "{model.name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    wanted = "" if not keys else f"; {keys} API key{'s are' if keys > 1 else ' is'} set"
    shown_key = '-H "authorization: Bearer $API_KEY" ' if keys else ""
    return [
        f"serving {model.name} at {url}/v1{wanted}",
        f"try: curl {url}/v1/chat/completions {shown_key}-H 'content-type: application/json' -d '{body}'",
    ]
