"""A tree of files that a self-test writes for its check."""

import contextlib
import os
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
