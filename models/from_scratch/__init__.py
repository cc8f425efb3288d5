"""Classifiers that see nothing but one task's support set; see ``card.md``."""
