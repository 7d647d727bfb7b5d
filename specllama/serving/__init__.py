"""The HTTP server: OpenAI's API, and llama.cpp's additions to it, over a pool of sequences."""
