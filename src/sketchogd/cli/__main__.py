"""`python -m sketchogd.cli`, which is `python -m sketchogd`."""

from sketchogd.cli import app

if __name__ == "__main__":
    app(prog_name="sketchogd")
