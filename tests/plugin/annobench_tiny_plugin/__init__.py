"""A tiny plugin of annobench."""
