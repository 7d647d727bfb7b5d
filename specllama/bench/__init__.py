"""Measuring: arms (named settings) side by side on the same prompts, through the public decoder."""
