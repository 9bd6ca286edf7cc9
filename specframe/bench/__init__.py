"""Benchmarks: workloads, arms and what is made of their times. Scripts with stored results, never timed tests."""
