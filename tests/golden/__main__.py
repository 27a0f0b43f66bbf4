"""`make golden`: compares all scenarios with their traces; `--record` writes the traces anew."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.golden.scenarios import SCENARIOS
from tests.golden.trace import first_difference, read, record, write


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make golden ARGS=...", description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios; all of them by default")
    parser.add_argument("--record", action="store_true", help="write the traces anew: behaviour was changed")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in SCENARIOS]:
        parser.error(f"a scenario is one of {', '.join(SCENARIOS)}; got: {', '.join(unknown)}; hint: --list")
    names = given.names or list(SCENARIOS)
    if given.list:
        print("\n".join(names))
        return 0
    different = 0
    for name in names:
        lines = record(SCENARIOS[name])
        if given.record:
            write(name, lines)
            print(f"{name}: {len(lines)} lines recorded", flush=True)
            continue
        expected = read(name)
        if expected is None:
            said = "no trace; hint: --record"
        else:
            found = first_difference(expected, lines)
            said = "" if found is None else str(found)
        different += bool(said)
        print(f"{name}: {said or f'the same, {len(lines)} lines'}", flush=True)
    print(f"{len(names) - different} of {len(names)} scenarios are as they were recorded")
    return 1 if different else 0


if __name__ == "__main__":
    logging.disable()  # clusters say what happens to them
    sys.exit(main())
