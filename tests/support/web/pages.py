"""Pages that are written to be opened as files, read back."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """A page read back: fails where tags do not match, ids repeat, or something is run or comes from outside."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []
        assert not {"script", "iframe", "object", "link"} & set(self.tags)
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "img"):  # which have no end
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "href") or (value or "").startswith(("data:image/png;base64,", "#"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def ids(self) -> list[str]:
        return [value or "" for name, value in self.attributes if name == "id"]

    @property
    def text(self) -> str:
        """The visible text, any space as a single plain one."""
        return " ".join(" ".join(self.texts).split())


TYPED = {"\u202f": " ", "\u2060": "", "\u2013": "-", "\u00d7": "x"}


def plain(words: str) -> str:
    """Return a text as it is typed: plain spaces, a hyphen in an interval, x for times."""
    return "".join(TYPED.get(character, character) for character in words)
