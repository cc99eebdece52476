"""Checks every link inside a built site, files and anchors, without the network.

python docs/links.py docs/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value or "")


def broken(site: Path) -> list[str]:
    """A line for every link that leads nowhere."""
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file].anchors):
                found.append(f"{path.relative_to(site.resolve())}: {link}")
    return found


def main() -> int:
    """Print what is broken; 1 if anything is, or if there is no site."""
    site = Path(sys.argv[1])
    pages = len(list(site.rglob("*.html")))
    lines = broken(site) if pages else [f"{site} holds no page: run make docs"]
    print("\n".join(lines) or f"{pages} pages, every link inside leads somewhere", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
