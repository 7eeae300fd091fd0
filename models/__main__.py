"""`python -m models` prints which architectures there are and what is verified of each."""

from models.support import table

if __name__ == "__main__":
    print(table())
