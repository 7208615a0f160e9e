"""`python -m sketchogd.cli`."""

from sketchogd.cli import app

if __name__ == "__main__":
    app()
