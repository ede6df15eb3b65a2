"""`python -m tests.fingerprints` shows what differs from the stored numbers; `--write` stores those of this checkout instead."""

import argparse
import json
import os
import subprocess
import sys

import numpy as np

from tests.fingerprints import CASES, PLAIN, RUNS, SETTINGS, arithmetic, differences, fingerprint
from tests.fingerprints.settings import all_settings


def main() -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(prog="python -m tests.fingerprints", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="compare these only; all if left out")
    parser.add_argument("--write", action="store_true", help="replace the stored numbers and settings by those of now")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="run the cases in another order")
    asked = parser.parse_args()
    names = asked.cases or list(CASES)
    if asked.write and asked.cases:
        parser.error("--write stores all cases together; name none")
    if asked.shuffle is not None:
        names = [names[k] for k in np.random.default_rng(asked.shuffle).permutation(len(names))]
    if any(os.environ.get(name) != value for name, value in PLAIN.items()):  # torch reads them when it is imported
        return subprocess.run(
            [sys.executable, "-m", "tests.fingerprints", *sys.argv[1:]], env={**os.environ, **PLAIN}, check=False
        ).returncode
    found = {name: fingerprint(name) for name in names}
    return _write(found) if asked.write else _compare(found)


def _write(found: dict) -> int:
    for name, case in CASES.items():
        if case.like is not None and (lines := differences(found[name], found[case.like])):
            print(f"{name} is not like {case.like}: {lines[0]}")
            return 1
    own = {name: found[name] for name, case in CASES.items() if case.like is None}
    RUNS.write_text(json.dumps({"arithmetic": arithmetic(), "cases": own}, indent=1) + "\n")
    SETTINGS.write_text(json.dumps(all_settings(), indent=1) + "\n")
    return 0


def _compare(found: dict) -> int:
    stored = json.loads(RUNS.read_text())
    lines = differences(arithmetic(), stored["arithmetic"], "arithmetic")
    lines += differences(all_settings(), json.loads(SETTINGS.read_text()), "settings")
    for name, record in found.items():
        lines += differences(record, stored["cases"][CASES[name].like or name], name)
    print("\n".join(lines) or f"{len(found)} runs and all settings are as stored")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
