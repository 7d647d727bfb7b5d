"""Distil a small speculative draft from a llama-architecture target GGUF (see docs/distil.md)."""
