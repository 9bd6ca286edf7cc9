"""Exact speculative decoding for transformers models, as a plugin framework."""
from specframe.hookspecs import hookimpl
