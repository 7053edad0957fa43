"""Write the reference in README.md, or check that it is up to date."""

from __future__ import annotations

import argparse
import difflib
import sys

from tests.tools.docs.reference import README, ROOT, updated


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.tools.docs", description=__doc__)
    options.add_argument(
        "--check", action="store_true", help="change nothing; fail on a difference"
    )
    options.add_argument("--pictures", action="store_true", help="take the pictures too")
    given = options.parse_args()
    if given.pictures:
        from tests.tools.docs.pictures import take

        for picture in take():
            print(picture.relative_to(ROOT))
    check = given.check
    old = README.read_text(encoding="utf-8")
    new = updated(old)
    if old == new:
        print("README.md: the reference is up to date")
        return 0
    if check:
        print(
            "README.md's reference differs from the magics' help; run: make docs", file=sys.stderr
        )
        sys.stderr.writelines(
            difflib.unified_diff(
                old.splitlines(True), new.splitlines(True), "README.md", "the code", n=1
            )
        )
        return 1
    README.write_text(new, encoding="utf-8")
    print("README.md: the reference was written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
