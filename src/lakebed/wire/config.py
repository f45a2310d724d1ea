"""Configuration that clients read first: versions, and the features of the storage."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from .common import LIST_MAX

__all__ = ["Config", "StatsEventsList", "StorageConfig", "UsageReportSummary", "VersionConfig"]

CONTRACT_VERSION: Final = "1.84.0"


class VersionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of a server. `version` is that of the contract: clients compare it with the version that they need.

    `version_context` must be the word that clients expect. `lakebed_version` is Lakebed's own version.
    """

    version: str = CONTRACT_VERSION
    version_context: str = "lakeFS"
    lakebed_version: str = ""


class StorageConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename={"validity_regex": "blockstore_namespace_ValidityRegex"}
):
    blockstore_description: str = ""
    blockstore_id: str = ""
    validity_regex: str
    blockstore_namespace_example: str
    blockstore_type: str
    default_namespace_prefix: str
    import_support: bool = False
    import_validity_regex: str
    pre_sign_multipart_upload: bool = False
    pre_sign_support: bool
    pre_sign_support_ui: bool = False


class UiConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Empty: Lakebed offers no viewers."""


class CapabilitiesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Empty, as in the contract."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    capabilities_config: CapabilitiesConfig = CapabilitiesConfig()
    storage_config: StorageConfig
    storage_config_list: list[StorageConfig] = []
    ui_config: UiConfig = UiConfig()
    version_config: VersionConfig


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    month: int
    year: int


class UsageReportSummary(msgspec.Struct, frozen=True, kw_only=True):
    installation_id: str
    reports: list[UsageReport]


class StatsEvent(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    class_: str
    name: str
    count: int


class StatsEventsList(msgspec.Struct, frozen=True, kw_only=True):
    events: Annotated[list[StatsEvent], msgspec.Meta(max_length=LIST_MAX)]
