"""Options of object stores: settings that a namespace's URI does not have, and their environment variables.

This module does not read the environment: a composition root passes `options_from_environment(os.environ)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ObjectStoreOptions", "environment_of", "options_from_environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreOptions:
    """The settings that a URI does not have. Plain values, since workers receive them; the repr omits secrets.

    Without `s3_access_key_id`, credentials are looked up as AWS's tools do. `s3_endpoint` is any S3-compatible service,
    addressed by path unless `s3_virtual_hosted`; an endpoint with `http://` is used without TLS. `azure_endpoint` and
    `gs_endpoint` are for emulators and private links. `gs_service_account` is a file that every process must be able to
    read. Timeouts and retries apply to all three services.
    """

    local_root: Path | None = None
    allow_absolute_local: bool = False
    local_durable: bool = True
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_access_key_id: str | None = None
    s3_secret_access_key: str | None = field(default=None, repr=False)
    s3_session_token: str | None = field(default=None, repr=False)
    s3_virtual_hosted: bool = False
    azure_account: str | None = None
    azure_key: str | None = field(default=None, repr=False)
    azure_sas_token: str | None = field(default=None, repr=False)
    azure_endpoint: str | None = None
    gs_endpoint: str | None = None
    gs_service_account: Path | None = None
    timeout_s: float = 60.0
    retries_max: int = 5


def options_from_environment(environment: Mapping[str, str]) -> ObjectStoreOptions:
    """Read the options from environment variables.

    LAKEBED_BLOCKS_LOCAL_ROOT, LAKEBED_BLOCKS_ALLOW_ABSOLUTE_LOCAL (`1`), LAKEBED_S3_ENDPOINT, LAKEBED_S3_REGION,
    LAKEBED_S3_ACCESS_KEY_ID, LAKEBED_S3_SECRET_ACCESS_KEY, LAKEBED_S3_SESSION_TOKEN, LAKEBED_S3_VIRTUAL_HOSTED (`1`). A
    missing S3 variable is read from AWS's own (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION,
    AWS_ACCESS_KEY_ID, …). The credentials all come from one of the two families.

    LAKEBED_AZURE_ACCOUNT, LAKEBED_AZURE_KEY, LAKEBED_AZURE_SAS_TOKEN, LAKEBED_AZURE_ENDPOINT, LAKEBED_GS_ENDPOINT,
    LAKEBED_GS_SERVICE_ACCOUNT (a file). Without LAKEBED_AZURE_ACCOUNT, Azure's own are read (AZURE_STORAGE_ACCOUNT,
    AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN).
    """

    def first(*names: str) -> str | None:
        return next((value for name in names if (value := environment.get(name))), None)

    family = "LAKEBED_S3_" if environment.get("LAKEBED_S3_ACCESS_KEY_ID") else "AWS_"
    root = first("LAKEBED_BLOCKS_LOCAL_ROOT")
    service_account = first("LAKEBED_GS_SERVICE_ACCOUNT")
    # The credentials of one account do not work for another.
    azure = "LAKEBED_AZURE_" if environment.get("LAKEBED_AZURE_ACCOUNT") else "AZURE_STORAGE_"
    return ObjectStoreOptions(
        local_root=Path(root) if root else None,
        allow_absolute_local=first("LAKEBED_BLOCKS_ALLOW_ABSOLUTE_LOCAL") == "1",
        s3_endpoint=first("LAKEBED_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        s3_region=first("LAKEBED_S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"),
        s3_access_key_id=first(family + "ACCESS_KEY_ID"),
        s3_secret_access_key=first(family + "SECRET_ACCESS_KEY"),
        s3_session_token=first(family + "SESSION_TOKEN"),
        s3_virtual_hosted=first("LAKEBED_S3_VIRTUAL_HOSTED") == "1",
        azure_account=first(azure + "ACCOUNT", azure + "ACCOUNT_NAME"),
        azure_key=first(azure + "KEY", azure + "ACCOUNT_KEY"),
        azure_sas_token=first(azure + "SAS_TOKEN"),
        azure_endpoint=first("LAKEBED_AZURE_ENDPOINT"),
        gs_endpoint=first("LAKEBED_GS_ENDPOINT"),
        gs_service_account=Path(service_account) if service_account else None,
    )


def environment_of(options: ObjectStoreOptions) -> dict[str, str]:
    """Return the variables from which `options_from_environment` makes these options in another process.

    Omits unset options, timeouts and retries.
    """
    values = {
        "LAKEBED_BLOCKS_LOCAL_ROOT": options.local_root and str(options.local_root),
        "LAKEBED_BLOCKS_ALLOW_ABSOLUTE_LOCAL": "1" if options.allow_absolute_local else None,
        "LAKEBED_S3_ENDPOINT": options.s3_endpoint,
        "LAKEBED_S3_REGION": options.s3_region,
        "LAKEBED_S3_ACCESS_KEY_ID": options.s3_access_key_id,
        "LAKEBED_S3_SECRET_ACCESS_KEY": options.s3_secret_access_key,
        "LAKEBED_S3_SESSION_TOKEN": options.s3_session_token,
        "LAKEBED_S3_VIRTUAL_HOSTED": "1" if options.s3_virtual_hosted else None,
        "LAKEBED_AZURE_ACCOUNT": options.azure_account,
        "LAKEBED_AZURE_KEY": options.azure_key,
        "LAKEBED_AZURE_SAS_TOKEN": options.azure_sas_token,
        "LAKEBED_AZURE_ENDPOINT": options.azure_endpoint,
        "LAKEBED_GS_ENDPOINT": options.gs_endpoint,
        "LAKEBED_GS_SERVICE_ACCOUNT": options.gs_service_account and str(options.gs_service_account),
    }
    return {name: value for name, value in values.items() if value}
