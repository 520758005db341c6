"""A real Chromium on a page, watched: no console error, no fault, and nothing asked of anybody but the server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

__all__ = ["ARTIFACTS", "chromium", "drive", "watched_page"]

ARTIFACTS = Path(__file__).parents[2] / "artifacts" / "browser"
"""Screenshots, for who wants to look."""


def chromium() -> str:
    """Path of a Chromium, or the test is skipped."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(os.environ.get("CHROMIUM") or name):
            return found
    pytest.skip("no Chromium: install one (apt-get install chromium) or name it in CHROMIUM")


@contextmanager
def watched_page(address: str, **context: Any) -> Iterator[Any]:
    """A page of a fresh browser at ``address``; afterwards its faults fail the test."""
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        opened = browser.new_context(
            viewport=context.pop("viewport", {"width": 1400, "height": 950}), **context
        )
        page = opened.new_page()
        page.set_default_timeout(20_000)
        page.on(
            "console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: faults.append(str(error)))

        def asked(request: Any) -> None:
            if not request.url.startswith((address, "data:", "blob:")):
                faults.append(f"asked {request.url}")

        opened.on("request", asked)
        page.goto(f"{address}/ui")
        yield page
        browser.close()
    assert not faults, faults


async def drive(action: Callable[[str], None], port: int) -> None:
    """Run ``action(address)`` on a thread, beside the server of this test."""
    await trio.to_thread.run_sync(action, f"http://127.0.0.1:{port}")
