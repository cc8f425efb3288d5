"""Meta-learned representations for learning from multiple annotators: a differentiable EM on embeddings."""
