"""Makes the files in tests/golden from the reference implementation."""
