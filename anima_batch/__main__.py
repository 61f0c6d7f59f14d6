"""`python -m anima_batch`."""

from anima_batch.cli import main

if __name__ == "__main__":
    main()
