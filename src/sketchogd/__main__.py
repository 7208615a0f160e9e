"""`python -m sketchogd`: the command line."""

from sketchogd.cli import app

if __name__ == "__main__":
    app(prog_name="sketchogd")
