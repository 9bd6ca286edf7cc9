"""The names of what a draft's folder holds, for what writes one and what reads one."""

from __future__ import annotations

OUTPUT_MAP = "target_ids.json"  # of a reduced head: a list with the target id of every output column, -1 for none
BORROWS = "specframe_borrows"  # in config.json: a list of which tensors are the target's
RECEIPT = "provenance.json"  # how the draft was made
WORK = "work"  # what the making of it leaves, for a run that goes on
