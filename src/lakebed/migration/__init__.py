"""Migrate repositories from a server of the same contract: their history and entries, and no bytes.

The source is read only through its API, by `lakebed.client`. The target is written as a server would write it: by the
parts of `lakebed.catalog`, beside servers that may run (docs/guide/migrating.md).
"""

from .accounts import AccountsHere, AccountsMigrated, SourceAccounts, bring_accounts
from .adopting import Adopted, Step, adopt
from .flow import Migrated, Migration, migrate_repository, plan_repository
from .source import SourceRepository, answers, find_sources
