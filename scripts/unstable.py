#!/usr/bin/env python3
"""Turns tests/unstable.toml into a configuration of cargo-nextest, on standard output.

The tests in that file, and only these, are tried a second time. Fails if an entry is incomplete,
if its last day has passed, or if there are more than five.

    scripts/unstable.py > unstable-nextest.toml
    scripts/unstable.py --check               only check
"""

import datetime
import pathlib
import re
import sys
import tomllib

LIST = pathlib.Path(__file__).resolve().parent.parent / "tests/unstable.toml"
MOST = 5


def fail(message: str) -> None:
    sys.exit(f"error: {LIST}: {message}")


def entries() -> list[dict]:
    with LIST.open("rb") as file:
        content = tomllib.load(file)
    if set(content) - {"test"}:
        fail(f"unknown keys: {', '.join(sorted(set(content) - {'test'}))}; expected [[test]]")
    tests = content.get("test", [])
    if len(tests) > MOST:
        fail(f"{len(tests)} entries; at most {MOST} may be unstable: find the cause of one first")
    for test in tests:
        name = test.get("name", "an entry without a name")
        for key, kind in [("name", str), ("since", datetime.date), ("until", datetime.date), ("cause", str)]:
            if not isinstance(test.get(key), kind):
                fail(f"{name}: {key} is missing or is not a {kind.__name__}")
        if not re.fullmatch(r"\S+ \S+", name):
            fail(f"{name}: expected the name that cargo-nextest prints, PACKAGE::PROGRAM TEST")
        if test["until"] < datetime.date.today():
            fail(f"{name}: its last day was {test['until']}: find the cause of its failures")
    return tests


def main() -> None:
    tests = entries()
    if sys.argv[1:] == ["--check"]:
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    for test in tests:
        program, name = test["name"].split()
        print("[[profile.default.overrides]]")
        print(f"filter = 'binary_id(={program}) & test(={name})'")
        print("retries = 1")


main()
