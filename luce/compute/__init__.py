"""Exact arithmetic on the CPU: pinned BLAS, row tiles that keep bits, checked operators, the device fingerprint."""
