"""Run simulated worlds from the command line: `./dev simulate --seeds 1000`."""

import argparse
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.scenario import Scenario


def simulate(seed: int, *, verbose: bool = False) -> Scenario:
    """One world, from beginning to end. A broken promise raises, and names the seed."""
    scenario = Scenario(seed)
    if verbose:
        scenario.world.trace = print
    try:
        scenario.run()
    except BaseException as problem:
        problem.add_note(f"seed {seed}; again: ./dev simulate --seed {seed} --verbose")
        raise
    return scenario


def main() -> int:
    arguments = _arguments()
    seeds = [arguments.seed] if arguments.seed is not None else range(arguments.seeds)
    began = time.perf_counter()
    failed = 0
    for seed in seeds:
        try:
            simulate(seed, verbose=arguments.verbose)
        except Exception as problem:
            failed += 1
            print(f"seed {seed}: {type(problem).__name__}: {problem}")
            print(f"    again: ./dev simulate --seed {seed} --verbose")
            if arguments.seed is not None:
                raise
    print(f"{len(seeds)} worlds, {failed} failed, {time.perf_counter() - began:.1f} s")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many worlds, from seed 0 on")
    parser.add_argument("--seed", type=int, help="only this world")
    parser.add_argument("--verbose", action="store_true", help="print everything that happens")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
