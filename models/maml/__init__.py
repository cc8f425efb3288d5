"""MAML with aggregated labels; see ``card.md``."""
