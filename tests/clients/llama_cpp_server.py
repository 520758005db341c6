"""llama.cpp's own HTTP server, on a free port of this machine: an OpenAI server that knows nothing of luce.

``python llama_cpp_server.py MODEL.gguf MMPROJ.gguf`` in the environment of the group ``llamacpp``
(`tests/clients/install.py`) prints its address when it listens, and serves until a signal.
"""

from __future__ import annotations

import argparse
import signal

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("mmproj")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=2048, help="Tokens of a slot.")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.mmproj.path = given.model, given.mmproj
    params.model_alias = {"luce-demo"}
    params.n_parallel, params.n_ctx = given.slots, given.slots * given.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.endpoint_metrics = True
    params.hostnames, params.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
