"""The settings of the S3 gateway, checked when the server starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lakebed.base import Invalid, InvalidName, check_repository

_DOMAIN: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class InvalidGatewaySetting(Invalid):
    """A domain is no valid host name, or a repository's name is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """`domains`: hosts whose first labels name a bucket. `ports`: ports for S3 requests only."""

    domains: tuple[str, ...] = ()
    # Every bucket is a branch of this repository. Empty: a bucket is a repository, or a ref of one.
    repository: str = ""
    ports: tuple[int, ...] = ()


def s3_options(environment: Mapping[str, str]) -> S3Options:
    """Read LAKEBED_GATEWAY_DOMAINS (comma-separated hosts) and LAKEBED_GATEWAY_REPOSITORY.

    Raises:
        InvalidGatewaySetting: a value is invalid.
    """
    domains = tuple(
        domain for text in environment.get("LAKEBED_GATEWAY_DOMAINS", "").split(",") if (domain := text.strip().lower())
    )
    for domain in domains:
        if not _DOMAIN.fullmatch(domain):
            raise InvalidGatewaySetting(f"LAKEBED_GATEWAY_DOMAINS: {domain!r} is not a host name")
    repository = environment.get("LAKEBED_GATEWAY_REPOSITORY", "")
    if repository:
        try:
            check_repository(repository)
        except InvalidName as error:
            raise InvalidGatewaySetting(f"LAKEBED_GATEWAY_REPOSITORY: {error}") from error
    return S3Options(domains=domains, repository=repository)
