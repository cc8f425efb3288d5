"""Data: crowd annotations, data sets, loaders. Imports neither ``models`` nor ``benchmark``."""
