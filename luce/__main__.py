"""`python -m luce` is the `luce` command."""

from luce.cli.main import main

main()
