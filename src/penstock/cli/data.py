"""`penstock data`: graphs in and out."""

import typer

data = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Make, import, inspect and export graphs.")
