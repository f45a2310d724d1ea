"""URIs are taken apart in one place, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebed.cli.kit.uris import (
    BadUri,
    ObjectUri,
    RefUri,
    other_readings,
    parse_new_branch,
    parse_object,
    parse_prefix,
    parse_ref,
    parse_repository,
    parse_tag,
    uri_meant,
)


@pytest.mark.parametrize("text", ["lakefs://lake", "lakefs://lake/"])
def test_a_repository_is_what_follows_the_scheme(text: str) -> None:
    assert parse_repository(text) == "lake"


@pytest.mark.parametrize("ref", ["main", "v1~2", "main@", "3f2a^1"])
def test_a_ref_is_the_second_segment(ref: str) -> None:
    assert parse_ref(f"lakefs://lake/{ref}") == parse_ref(f"lakefs://lake/{ref}/") == RefUri("lake", ref)


@pytest.mark.parametrize("path", ["a", "a/b", "a//b", "/a", "a/", "%2B", "ä b", "../x", "lakefs://x", "a?b#c"])
def test_a_path_is_all_that_follows_and_means_itself(path: str) -> None:
    assert parse_object(f"lakefs://lake/main/{path}") == ObjectUri("lake", "main", path)


@pytest.mark.parametrize("text", ["lakefs://lake/main", "lakefs://lake/main/"])
def test_a_prefix_may_be_everything(text: str) -> None:
    assert parse_prefix(text) == ObjectUri("lake", "main", "")


def test_a_tag_may_hold_slashes() -> None:
    assert parse_tag("lakefs://lake/release/1.0") == RefUri("lake", "release/1.0")


@pytest.mark.parametrize("uri", [RefUri("lake", "main"), ObjectUri("lake", "main", "a//b")])
def test_a_uri_is_written_as_it_is_read(uri: RefUri | ObjectUri) -> None:
    parsed = parse_ref(str(uri)) if isinstance(uri, RefUri) else parse_object(str(uri))

    assert parsed == uri


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lake",
        "s3://lake/main",
        "lakefs:/lake/main",
        "LAKEFS://lake/main",
        "lakefs://",
        "lakefs:///main",
        "lakefs://la/main",
        "lakefs://Lake/main",
        "lakefs://lake",
        "lakefs://lake/",
        "lakefs://lake//a",
        "lakefs://lake/main",
        "lakefs://lake/main/",
        "lakefs://lake/main/\udcff",
    ],
)
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(BadUri):
        parse_object(text)


def test_the_error_says_what_is_missing_and_shows_the_form() -> None:
    with pytest.raises(BadUri, match=r"lakefs://lake/main: the path is missing \(lakefs://repository/ref/path\)"):
        parse_object("lakefs://lake/main")


@pytest.mark.parametrize("text", ["lakefs://lake/main", "lakefs://lake/main/a"])
def test_more_than_a_repository_is_no_repository(text: str) -> None:
    with pytest.raises(BadUri, match="expected a repository URI"):
        parse_repository(text)


def test_more_than_a_ref_is_no_ref() -> None:
    with pytest.raises(BadUri, match="leave out /a"):
        parse_ref("lakefs://lake/main/a")


def test_a_new_branch_with_a_slash_gets_the_proposal_of_a_name_without() -> None:
    assert parse_new_branch("lakefs://lake/dev/") == RefUri("lake", "dev")
    with pytest.raises(BadUri, match=r"names of branches have no slash, try feature-x-1$"):
        parse_new_branch("lakefs://lake/feature/x/1")


def test_a_tag_needs_a_name() -> None:
    with pytest.raises(BadUri, match="the tag is missing"):
        parse_tag("lakefs://lake/")


@pytest.mark.parametrize(
    ("typed", "form", "other", "meant"),
    [
        ("flights/main", "lakefs://repository/ref", "", "lakefs://flights/main"),
        ("/flights/main~2", "lakefs://repository/ref", "", "lakefs://flights/main~2"),
        ("lakefs:/flights/main", "lakefs://repository/ref", "", "lakefs://flights/main"),
        ("LAKEFS://flights/main", "lakefs://repository/ref", "", "lakefs://flights/main"),
        ("flights", "lakefs://repository", "", "lakefs://flights"),
        ("flights/main", "lakefs://repository", "", "lakefs://flights"),
        ("flights/main/a b", "lakefs://repository/ref/path", "", "lakefs://flights/main/a b"),
        ("trial", "lakefs://repository/ref", "lakefs://flights/main", "lakefs://flights/trial"),
        ("b", "lakefs://repository/ref/path", "lakefs://flights/main/a", "lakefs://flights/main/b"),
        ("main/b", "lakefs://repository/ref/path", "lakefs://flights/main/a", "lakefs://flights/main/b"),
        ("flights/main/b", "lakefs://repository/ref/path", "lakefs://flights/main/a", "lakefs://flights/main/b"),
        ("main", "lakefs://repository/ref", "", ""),
        ("", "lakefs://repository", "", ""),
        ("s3://bucket/main", "lakefs://repository/ref", "", ""),
        ("s3://bucket/main", "lakefs://repository/ref", "lakefs://flights/main", ""),
    ],
)
def test_a_mistyped_uri_is_answered_with_the_one_that_was_meant(typed: str, form: str, other: str, meant: str) -> None:
    hint = uri_meant(BadUri("x", uri=typed, form=form), [other, typed])

    assert hint == (f"Did you mean {meant}?" if meant else "")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("b", ""),
        ("x/b", ""),
        ("x/", ""),
        ("lakefs.csv", ""),
        ("lakefs:/flights/dev/b", "lakefs://flights/dev/b"),
        ("LakeFS:flights/dev/b", "lakefs://flights/dev/b"),
        ("lakefs/other/main/b", "lakefs://other/main/b"),
        ("lakefs:/dev/b", "lakefs://flights/dev/b"),
        ("flights/dev/b", "lakefs://flights/dev/b"),
        ("main/b", "lakefs://flights/main/b"),
        ("dev/b", "lakefs://flights/dev/b"),
        ("dev", "lakefs://flights/dev"),
        ("./b", "a local file, which `lakebed object download` writes"),
        ("x/../b", "a local file, which `lakebed object download` writes"),
        ("..", "a local file, which `lakebed object download` writes"),
        ("s3:/bucket/b", "a URI of another kind"),
        ("x//b", "lakefs://flights/main/x/b"),
    ],
)
def test_a_bare_text_is_a_path_only_where_it_can_be_nothing_else(text: str, meant: str) -> None:
    found = other_readings(ObjectUri("flights", "main", "a"), text, {"main", "dev"}.__contains__)

    assert found == ([meant] if meant else [])


def test_a_file_in_place_of_a_uri_is_named_as_one(tmp_path: Path) -> None:
    error = BadUri("x", uri=str(tmp_path), form="lakefs://repository/ref/path")

    assert uri_meant(error, ["lakefs://lake/main/a"]) == "It is a folder here: swap the two arguments"
    assert uri_meant(error, [3, None]) == "It is a folder here: name a URI"
