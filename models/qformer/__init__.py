"""Q-Former: learned queries that read the tokens of a frozen encoder, and its pretrained weights."""
