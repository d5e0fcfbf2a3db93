"""What the checks share: the tree that a self-test writes, and the command line."""

import contextlib
import os
import pathlib
import sys
import tempfile


@contextlib.contextmanager
def scratch_tree():
    """The root of an empty tree, which is deleted at the end, and write(path, text), which makes folders too."""
    with tempfile.TemporaryDirectory() as root:
        def write(path, text):
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)

        yield root, write


def run(check, self_test, name):
    """Ends the process. `check` takes the root, by default this tree, and returns the findings; `self_test` asserts."""
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        print(f"{name}: the self-test passes")
        sys.exit(0)
    findings = check(sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).resolve().parents[2]))
    print("\n".join(findings) or f"{name}: clean")
    sys.exit(1 if findings else 0)
