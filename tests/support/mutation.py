"""Put wrong lines into copies of the package, one by one, and see which tests find them.

    python -m tests.support.mutation                  all of them: takes hours
    python -m tests.support.mutation seam mask        those of some kinds
    python -m tests.support.mutation --first          only the tests likeliest to find each
    python -m tests.support.mutation --results FILE   go on where FILE ends, and write to it

The tests that are likeliest to find a mutant run first, then those of them that are in the sweep.
All of `make test` runs only if they do not find it. A mutant that survives is a bug that nobody
would notice.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]


def mutated(mutant, to):
    """A copy of the tree with the wrong line in it."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    for name in names.splitlines():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)
    file = to / "fbuf" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.file} has {mutant.old!r} {text.count(mutant.old)} times, not once"
        )
    file.write_text(text.replace(mutant.old, mutant.new))


def failed(tree, arguments):
    """The first test that fails, None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
    command.append(
        "--ignore=tests/project/test_support.py"
    )  # it looks for the lines that are replaced
    path = os.pathsep.join([str(tree), str(tree / "adapters")])
    done = subprocess.run(
        [*command, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in (0, 5):  # 5: none of these tests is in the sweep, or all are
        return None
    found = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if found is None or "::" not in found[1]:  # also if a file cannot be imported
        raise SystemExit(f"pytest {arguments} did not run: {done.stdout}{done.stderr}")
    return found[1]


def caught(mutant, everything=True, failed=failed):
    """The test that finds a mutant, None if it survives."""
    file, chosen = mutant.tests
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        mutated(mutant, tree)
        (found,) = (tree / "tests").rglob(file)
        likely = [str(found), *(["-k", chosen] if chosen else [])]
        suites = [[*likely, "-m", "not sweep"], [*likely, "-m", "sweep"]]
        suites += [["-m", "not sweep"]] * everything
        return next((found for suite in suites if (found := failed(tree, suite))), None)


def main():
    from tests.support.mutants import MUTANTS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help="only mutants of these kinds")
    parser.add_argument("--first", action="store_true", help="only the likeliest tests")
    parser.add_argument("--results", type=pathlib.Path, help="a file to go on with")
    options = parser.parse_args()
    known = {}
    if options.results and options.results.exists():
        known = json.loads(options.results.read_text())
    table = collections.defaultdict(list)
    for mutant in MUTANTS:
        if options.kinds and mutant.kind not in options.kinds:
            continue
        key = f"{mutant.file}: {mutant.old} -> {mutant.new}"
        if key not in known:
            known[key] = caught(mutant, not options.first)
            if options.results:
                options.results.write_text(json.dumps(known, indent=1))
        table[mutant.kind].append(known[key])
        print(f"{mutant.kind:18} {known[key] or 'SURVIVED':60} {key}", flush=True)
    for kind, found in sorted(table.items()):
        print(f"{kind:18} {sum(map(bool, found))} of {len(found)} caught")


if __name__ == "__main__":
    main()
