"""Each annotator's most frequent class: the row that every tendency table needs."""
