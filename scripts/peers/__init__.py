"""specllama's peers behind one protocol, for scripts/compare_peers.py."""
