"""A hook of mkdocs: what pages of docs/ link to outside of docs/ becomes a link to the repository.

The site has the pages of docs/ alone. With `repo_url` a link to another file of the tree leads there; without it, only
the words of the link and the path stay. `docs/check_links.py` checks that the files are there.
"""

import posixpath
import re

_OUTSIDE = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)\s]*)\)")


def on_page_markdown(markdown, *, page, config, files):
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    return outside_links(markdown, folder, config.get("repo_url") or "")


def outside_links(markdown: str, folder: str, repository: str) -> str:
    """The page with its links out of docs/ rewritten; `folder` is the folder of the page in the tree."""

    def rewritten(link: re.Match[str]) -> str:
        path, _, anchor = link[3].partition("#")
        target = posixpath.normpath(posixpath.join(folder, path))
        if link[1] or target.startswith(("docs/", "../")):
            return link[0]
        if not repository:
            return f"{link[2]} (`{target}`)"
        return f"[{link[2]}]({repository.rstrip('/')}/blob/main/{target}{'#' + anchor if anchor else ''})"

    return _OUTSIDE.sub(rewritten, markdown)
