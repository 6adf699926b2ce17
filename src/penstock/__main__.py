"""`python -m penstock`: the command line, where the script `penstock` is not on the path."""

from penstock.cli import main

main()
