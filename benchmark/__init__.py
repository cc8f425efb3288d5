"""Measures methods on data and writes the tables. Knows both only through their base classes."""
