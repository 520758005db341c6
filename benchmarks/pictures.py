"""Pictures as files, for benchmarks: charts' size and few colours, each one different."""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageDraw

__all__ = ["data_url", "png"]


def png(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG file with a background and five bars."""
    image = Image.new("RGB", (width, height), (250, 250, 245 - seed % 40))
    draw = ImageDraw.Draw(image)
    for bar in range(5):
        left = (2 * bar + 1) * width // 11
        top = height // 8 + (bar * 37 + seed * 23) % (height // 2)
        colour = (bar * 50, (90 + seed * 31) % 256, 160)
        draw.rectangle((left, top, left + width // 11, height - 8), colour)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def data_url(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"
