"""The report of a comparison: one page to look at, its figures, and the answer in words."""
