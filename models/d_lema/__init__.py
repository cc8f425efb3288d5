"""D-LEMA: an ensemble of dropout networks, one per annotator."""
