"""Long traffic of every kind against a real server, and what becomes of its memory: ``python -m benchmarks.soak``."""
