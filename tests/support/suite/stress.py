"""Tests, many times, while busy loops take the processor: ``make test-stress FILES="tests/a tests/b.py"``.

What fails here depends on speed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter

BUSY = 4
"""Busy loops next to the tests."""

LOOP = "while True: pass"


def main(argv: list[str]) -> int:
    """Run the tests, print each round and the failures of all. Returns 1 if a round failed."""
    parser = argparse.ArgumentParser(prog="stress")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which no round begins")
    parser.add_argument("files", nargs="+")
    asked = parser.parse_args(argv)
    failures: Counter[str] = Counter()
    rounds = bad = 0
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(BUSY)]
    began = time.monotonic()
    try:
        while rounds < asked.times and time.monotonic() - began < asked.limit:
            command = [sys.executable, "-m", "pytest", "-q", "-m", "not bench and not full", *asked.files]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            rounds += 1
            failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
            failures.update(failed)
            bad += done.returncode != 0
            last = next(reversed(done.stdout.strip().splitlines()), "")
            print(f"{rounds}: {last}", flush=True)
            if done.returncode != 0:
                print(done.stdout[-4000:] + done.stderr[-1000:], flush=True)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    print(f"{rounds} rounds next to {BUSY} busy loops, {bad} failed")
    for test, number in failures.most_common():
        print(f"  {number} times: {test}")
    return 1 if bad or rounds == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
