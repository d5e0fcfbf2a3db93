"""What the programs that make and describe a release ask of the tree and of the machine."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def version():
    """Of the product, as CMakeLists.txt has it."""
    return re.search(r"^project\(polysketch VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]


def packages_of(libraries):
    """The Debian packages that have these libraries, by the names of files, in order. Exits where a library has none."""
    # A package knows the path in /usr or the one before usrmerge.
    paths = [f"{prefix}/lib/x86_64-linux-gnu/{name}" for name in sorted(libraries) for prefix in ("", "/usr")]
    shown = subprocess.run(["dpkg-query", "--search", *paths], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    owners = {line.rsplit("/", 1)[1]: line.split(":")[0] for line in shown.splitlines()}
    if missing := set(libraries) - owners.keys():
        sys.exit(f"expected a package of each library, found none of {', '.join(sorted(missing))}")
    return sorted(set(owners.values()))
