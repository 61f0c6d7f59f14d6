"""The folder training/ is no part of the package: it is found from the repository, after all that is installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
