"""`python -m specviz`: start the command line."""

import sys
from importlib.util import find_spec

if __name__ == "__main__":
    if not find_spec("torch"):
        sys.exit("specviz: this Python lacks its packages; run `make venv`, then .venv/bin/python -m specviz.")
    from specviz.cli.main import main

    sys.exit(main())
