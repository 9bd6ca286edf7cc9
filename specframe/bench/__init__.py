"""Comparisons and benchmarks: workloads, arms, plans, runs and what is made of their times.

``specframe compare`` is for everybody; the modules with a ``main`` are specframe's own benchmarks, with stored results, never
timed tests.
"""
