"""`./dev bench NAME`: runs one bench and prints its figures."""

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

HELPERS = {"__main__", "bare", "feeding", "harness", "plain_worker", "receivers", "sdk_app", "wire"}


def main() -> None:
    names = sorted(
        module.name
        for module in pkgutil.iter_modules([str(Path(__file__).parent)])
        if module.name not in HELPERS
    )
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("name", choices=names, help="which bench to run")
    chosen = parser.parse_args(sys.argv[1:2])
    sys.argv = [f"./dev bench {chosen.name}", *sys.argv[2:]]
    importlib.import_module(f"benchmarks.{chosen.name}").main()


if __name__ == "__main__":
    main()
