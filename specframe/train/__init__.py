"""Training a draft for a target: ``specframe train-draft``.

A small model of the target's architecture learns to say what the target says, from text that the target itself writes.
Everything that costs time is kept under the work folder and taken up again after a kill.
"""
