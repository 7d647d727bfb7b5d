"""`python -m specllama`."""

from specllama.cli.main import main

main()
