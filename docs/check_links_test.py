#!/usr/bin/env python3
"""That check_links.py reports each kind of link that leads nowhere, and no good link."""

import pathlib
import tempfile
import unittest

import check_links
import site_links

GOOD = {
    "README.md": (
        "# Store\n[part](docs/part.md) [heading](docs/part.md#two-words-more) [folder](docs) [below](#store)\n"
        "[elsewhere](https://example.com/none.md#x) `[code](none.md)` ![picture](docs/a.svg \"title\")\n"
        "```\n[fenced](none.md)\n# no heading\n```\n[reference]: docs/part.md#two-words-more-1\n"
    ),
    "docs/part.md": '# Two words: `more`\n## Two words, more\n<a id="own"></a>\n[up](../README.md#store) [own](#own)\n',
    "docs/a.svg": "<svg/>\n",
}


def problems(**changed: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in (GOOD | changed).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return check_links.problems(root)


class CheckLinks(unittest.TestCase):
    def check(self, link: str, reason: str) -> None:
        found = problems(**{"docs/part.md": GOOD["docs/part.md"] + link + "\n"})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith("docs/part.md:5: "), found)
        self.assertIn(reason, found[0])

    def test_good_links(self):
        self.assertEqual(problems(), [])

    def test_file_that_is_not_there(self):
        self.check("[x](none.md)", "no file docs/none.md")
        self.check("![x](none.svg)", "no file docs/none.svg")
        self.check("[x]: none.md", "no file docs/none.md")
        self.check('<img src="none.svg">', "no file docs/none.svg")

    def test_link_out_of_the_tree(self):
        self.check("[x](../../x.md)", "no file ../x.md")
        self.check("[x](/README.md)", "relative to its page")

    def test_anchor_that_is_not_there(self):
        self.check("[x](#none)", "no heading for the anchor none")
        self.check("[x](../README.md#no-heading)", "no heading for the anchor no-heading")

    def test_navigation_of_the_site(self):
        found = problems(**{"mkdocs.yml": "nav:\n  - Part: none.md\n"})
        self.assertEqual(len(found), 2, found)
        self.assertIn("does not list docs/part.md", found[0])
        self.assertIn("lists docs/none.md", found[1])
        self.assertEqual(problems(**{"mkdocs.yml": "nav:\n  - Part: part.md\n"}), [])


class SiteLinks(unittest.TestCase):
    PAGE = "[a](../proto/README.md#x) ![b](pictures/b.svg) [c](names.md) [d](https://e.x/../f)"

    def test_a_link_out_of_docs_leads_to_the_repository(self):
        found = site_links.outside_links(self.PAGE, "docs", "https://e.x/store/")
        self.assertEqual(found, self.PAGE.replace("../proto/README.md", "https://e.x/store/blob/main/proto/README.md"))

    def test_without_a_repository_the_path_stays_as_text(self):
        found = site_links.outside_links(self.PAGE, "docs", "")
        self.assertEqual(found, self.PAGE.replace("[a](../proto/README.md#x)", "a (`proto/README.md`)"))


if __name__ == "__main__":
    unittest.main()
