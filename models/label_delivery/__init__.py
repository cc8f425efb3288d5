"""Label delivery: how an item's votes become the label that it is trained on in each epoch."""
