"""The LMNL-2022 challenge submission: annotators as tokens of a Transformer, FixMatch, skills, SWA."""
