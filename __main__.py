"""``python -m vdla`` is the ``vdla`` command."""

from .cli import main

if __name__ == "__main__":
    main()
