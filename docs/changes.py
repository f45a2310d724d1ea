"""Make the page of changes for the site: CHANGELOG.md, and before it the fragments of what is not released yet."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

KINDS = ("added", "changed", "fixed", "removed", "security")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page. mkdocs calls this."""
    root = Path(config.config_file_path).parent
    title, _, released = (root / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n")
    lines = [title, "", "## Not released yet"]
    for kind in KINDS:
        fragments = sorted((root / "changes").glob(f"*.{kind}.md"))
        if fragments:
            lines += ["", f"### {kind.capitalize()}", ""]
        lines += [f"- {' '.join(one.read_text(encoding='utf-8').split())}" for one in fragments]
    # Links are from the root and from `changes`; the page stands in `docs`.
    text = (
        "\n".join([*lines, "", released])
        .replace("](../docs/", "](")
        .replace("](docs/", "](")
        .replace("](changes/README.md)", "](#not-released-yet)")
    )
    files.append(File.generated(config, "changes.md", content=text))
    return files
