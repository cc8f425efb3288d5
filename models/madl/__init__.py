"""MaDL: a classifier and a confusion matrix for each annotator and item."""
