#!/usr/bin/env python3
"""Prints the links of a book in HTML whose target is missing: book-links.py DIR. Fails if any is."""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """The links of a page, and the names that links can point to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name"):
                self.names.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


root = pathlib.Path(sys.argv[1]).resolve()
# print.html repeats all pages, and 404.html is for no fixed address.
paths = [path for path in root.rglob("*.html") if path.name not in ("print.html", "404.html")]
pages = {path: Page(path) for path in paths}
dead = []
for path, page in pages.items():
    for link in page.links:
        url = urllib.parse.urlsplit(link)
        if url.scheme or url.netloc:
            continue
        target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
        if target.is_dir():
            target /= "index.html"
        name = urllib.parse.unquote(url.fragment)
        if not target.is_relative_to(root) or not target.exists():
            dead.append(f"{path.relative_to(root)}: {link}: no such page in the book")
        elif name and target in pages and name not in pages[target].names:
            dead.append(f"{path.relative_to(root)}: {link}: no such heading")
print("\n".join(dead), file=sys.stderr, end="\n" if dead else "")
sys.exit(1 if dead or len(pages) < 2 else 0)
