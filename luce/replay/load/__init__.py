"""Fires the requests of a trace at any OpenAI-compatible server, open loop, and reports what came of them."""
