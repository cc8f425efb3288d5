"""Tests, as a package of that name: another installed distribution brings a top-level "tests" of its own."""
