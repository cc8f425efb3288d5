"""Base: one classifier per annotator on pooled features, without queries."""
