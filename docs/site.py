"""What the site needs beyond the pages: links that leave docs/ go to the repository's files there."""

import re

REPOSITORY = "https://github.com/afterfit/afterfit/blob/main/"


def on_page_markdown(markdown: str, **_: object) -> str:
    """`](../README.md)` works in a checkout; on the site it leads to the file in the repository."""
    return re.sub(r"\]\(\.\./", f"]({REPOSITORY}", markdown)
