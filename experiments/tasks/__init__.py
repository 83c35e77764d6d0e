"""Tasks of other authors, on data and denoisers of ours."""
