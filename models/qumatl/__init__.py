"""QuMATL: one query per annotator on the tokens of a frozen encoder, for images and for clips."""
