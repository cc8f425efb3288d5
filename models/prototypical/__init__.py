"""Prototypical networks with aggregated labels; see ``card.md``."""
