"""The checks behind :mod:`benchmark.testing`, one small function a promise."""
