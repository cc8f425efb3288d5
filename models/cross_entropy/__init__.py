"""Plain cross-entropy on one label per item: the baseline of the noisy-label challenge."""
