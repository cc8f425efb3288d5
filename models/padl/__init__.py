"""PADL: a common Gaussian over logits, and one per annotator around it."""
