"""The generated client, `lakefs_sdk`, for what the `lakefs` package does not reach; and the reference's words."""

from __future__ import annotations

import concurrent.futures
import re
import shutil
import time
from collections.abc import Callable
from typing import Any

import lakefs
import lakefs_sdk
import pytest
from lakefs.client import Client
from lakefs_sdk.client import LakeFSClient

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


@pytest.fixture
def sdk(client: Client) -> LakeFSClient:
    return client.sdk_client


def test_it_logs_in_and_goes_on_with_the_token(sdk: LakeFSClient, server: Any) -> None:
    pair = lakefs_sdk.LoginInformation(
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
    )
    token = sdk.auth_api.login(pair).token

    bearer = LakeFSClient(lakefs_sdk.Configuration(host=server.url, access_token=token))

    assert bearer.auth_api.get_current_user().user.id == "esti"


def test_it_reads_health_configuration_and_set_up(sdk: LakeFSClient) -> None:
    sdk.health_check_api.health_check()
    assert sdk.config_api.get_config().version_config.version_context == "lakeFS"
    assert sdk.internal_api.get_setup_state().state == "initialized"


def test_it_manages_users_and_their_keys(sdk: LakeFSClient) -> None:
    sdk.auth_api.create_user(user_creation=lakefs_sdk.UserCreation(id="sdk-user"))
    made = sdk.auth_api.create_credentials("sdk-user")

    assert "sdk-user" in [user.id for user in sdk.auth_api.list_users().results]
    listed = sdk.auth_api.list_user_credentials("sdk-user").results
    assert [found.access_key_id for found in listed] == [made.access_key_id]
    sdk.auth_api.delete_credentials("sdk-user", made.access_key_id)
    sdk.auth_api.delete_user("sdk-user")


def test_it_manages_groups_policies_and_who_has_them(sdk: LakeFSClient, server: Any) -> None:
    auth = sdk.auth_api
    reads = lakefs_sdk.Statement(effect="allow", resource="*", action=["fs:ListRepositories", "fs:ReadRepository"])
    auth.create_user(user_creation=lakefs_sdk.UserCreation(id="sdk-reader"))
    auth.create_group(group_creation=lakefs_sdk.GroupCreation(id="sdk-readers", description="Who reads"))
    made = auth.create_policy(lakefs_sdk.Policy(id="sdk-reading", statement=[reads]))
    auth.attach_policy_to_group("sdk-readers", "sdk-reading")
    auth.add_group_membership("sdk-readers", "sdk-reader")

    assert made.statement == [reads]
    assert auth.get_policy("sdk-reading") == made
    assert auth.get_group("sdk-readers").description == "Who reads"
    assert {"Admins", "sdk-readers"} <= {group.id for group in auth.list_groups().results}
    assert {"FSReadAll", "sdk-reading"} <= {policy.id for policy in auth.list_policies().results}
    assert [user.id for user in auth.list_group_members("sdk-readers").results] == ["sdk-reader"]
    assert [group.id for group in auth.list_user_groups("sdk-reader").results] == ["sdk-readers"]
    assert [policy.id for policy in auth.list_group_policies("sdk-readers").results] == ["sdk-reading"]
    assert auth.list_user_policies("sdk-reader").results == []
    effective = auth.list_user_policies("sdk-reader", effective=True).results
    assert [policy.id for policy in effective] == ["sdk-reading"]

    pair = auth.create_credentials("sdk-reader")
    configuration = lakefs_sdk.Configuration(
        host=server.url, username=pair.access_key_id, password=pair.secret_access_key
    )
    reader = LakeFSClient(configuration)
    reader.repositories_api.list_repositories()
    refused = lakefs_sdk.exceptions.UnauthorizedException
    with pytest.raises(refused, match="insufficient permissions"):
        reader.auth_api.list_users()
    with pytest.raises(refused, match="insufficient permissions"):
        reader.repositories_api.delete_repository("sdk-nothing")

    writes = lakefs_sdk.Statement(effect="deny", resource="*", action=["fs:*"])
    auth.update_policy("sdk-reading", lakefs_sdk.Policy(id="sdk-reading", statement=[writes]))
    with pytest.raises(refused):
        reader.repositories_api.list_repositories()
    auth.attach_policy_to_user("sdk-reader", "FSReadAll")
    auth.detach_policy_from_user("sdk-reader", "FSReadAll")
    auth.detach_policy_from_group("sdk-readers", "sdk-reading")
    auth.delete_group_membership("sdk-readers", "sdk-reader")
    auth.delete_policy("sdk-reading")
    auth.delete_group("sdk-readers")
    auth.delete_user("sdk-reader")


def test_it_stores_metadata_and_protection_of_a_repository(sdk: LakeFSClient, repository: lakefs.Repository) -> None:
    sdk.internal_api.set_repository_metadata(repository.id, lakefs_sdk.RepositoryMetadataSet(metadata={"a": "b"}))
    assert sdk.repositories_api.get_repository_metadata(repository.id) == {"a": "b"}

    rule = lakefs_sdk.BranchProtectionRule(pattern="main")
    sdk.repositories_api.set_branch_protection_rules(repository.id, [rule])

    assert sdk.repositories_api.get_branch_protection_rules(repository.id) == [rule]
    with pytest.raises(lakefs_sdk.exceptions.ForbiddenException, match="cannot write to protected branch"):
        sdk.objects_api.upload_object(repository.id, "main", "a", content=b"x")


def test_it_uploads_forms_and_reads_heads(sdk: LakeFSClient, repository: lakefs.Repository) -> None:
    stats = sdk.objects_api.upload_object(repository.id, "main", "a/+b", content=b"hello")

    assert (stats.path, stats.size_bytes) == ("a/+b", 5)
    assert bytes(sdk.objects_api.get_object(repository.id, "main", "a/+b", range="bytes=1-2")) == b"el"
    head = sdk.objects_api.head_object_with_http_info(repository.id, "main", "a/+b")
    assert head.headers["Content-Length"] == "5"


def test_eight_clients_commit_to_one_branch_and_all_succeed(
    sdk: LakeFSClient, client: Client, repository: lakefs.Repository
) -> None:
    def work(number: int) -> None:
        branch = lakefs.Repository(repository.id, client=client).branch("main")
        for turn in range(5):
            branch.object(f"{number}/{turn}").upload("x")
            branch.commit(f"{number}/{turn}", allow_empty=True)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))

    main = repository.branch("main")
    assert len(list(main.log())) == 41
    assert len(list(repository.ref("main@").objects())) == 40


def test_it_reads_the_runs_of_hooks(sdk: LakeFSClient, repository: lakefs.Repository) -> None:
    main = repository.branch("main")
    action = '{"name": "no", "on": {"pre-commit": null}, "hooks": [{"id": "no", "type": "webhook", "properties": %s}]}'
    main.object("_lakefs_actions/no.yaml").upload(action % '{"url": "ftp://nowhere"}')

    with pytest.raises(lakefs.exceptions.LakeFSException, match="pre-commit hook aborted"):
        main.commit("refused")

    [run] = sdk.actions_api.list_repository_runs(repository.id).results
    [hook] = sdk.actions_api.list_run_hooks(repository.id, run.run_id).results
    output = sdk.actions_api.get_run_hook_output(repository.id, run.run_id, hook.hook_run_id)
    assert (run.status, run.event_type, run.branch, hook.action, hook.hook_id) == (
        "failed",
        "pre-commit",
        "main",
        "no",
        "no",
    )
    assert b"needs http" in bytes(output)
    assert sdk.actions_api.get_run(repository.id, run.run_id) == run


def test_refs_are_dumped_and_restored_as_tasks_and_at_once(sdk: LakeFSClient, server: Any) -> None:
    def done(status: Callable[[str, str], Any], repository: str, task: str) -> Any:
        while not (found := status(repository, task_id=task)).done:  # type: ignore[call-arg]  # a generated method
            time.sleep(0.01)
        return found

    repositories = sdk.repositories_api
    for name in ("dumped", "restored"):
        creation = lakefs_sdk.RepositoryCreation(name=name, storage_namespace=f"local://{name}")
        if name == "dumped":
            repositories.create_repository(creation)
            sdk.objects_api.upload_object("dumped", "main", "a", content=b"one")
            sdk.commits_api.commit("dumped", "main", lakefs_sdk.CommitCreation(message="one"))
            sdk.tags_api.create_tag("dumped", lakefs_sdk.TagCreation(id="v1", ref="main"))
            dumped = done(repositories.dump_status, "dumped", repositories.dump_submit("dumped").id)
            objects = server.folder / "objects"
            shutil.copytree(objects / "dumped", objects / "restored")
        else:
            repositories.create_repository(creation, bare=True)
    again = sdk.internal_api.dump_refs("dumped")
    wanted = lakefs_sdk.RefsRestore(**dumped.refs.to_dict())

    restored = done(repositories.restore_status, "restored", repositories.restore_submit("restored", wanted).id)
    sdk.internal_api.restore_refs("restored", wanted)

    assert restored.error is None
    assert again.commits_meta_range_id != dumped.refs.commits_meta_range_id
    assert sdk.branches_api.list_branches("restored").results == sdk.branches_api.list_branches("dumped").results
    assert sdk.tags_api.list_tags("restored").results == sdk.tags_api.list_tags("dumped").results
    assert sdk.objects_api.get_object("restored", "main", "a") == b"one"


def test_a_tree_is_committed_again_and_a_record_must_have_the_id_of_its_contents(
    sdk: LakeFSClient, repository: lakefs.Repository
) -> None:
    branch = repository.branch("main")
    for path in "ab":
        branch.object(path).upload(path)
        branch.commit(path)
    older = sdk.refs_api.log_commits(repository.id, "main").results[1]

    sdk.commits_api.commit(
        repository.id, "main", lakefs_sdk.CommitCreation(message="again"), source_metarange=older.meta_range_id
    )
    record = lakefs_sdk.CommitRecordCreation(
        commit_id="0" * 64,
        version=1,
        committer="esti",
        message="by hand",
        metarange_id=older.meta_range_id,
        creation_date=older.creation_date,
        parents=[older.id],
        generation=older.generation + 1,
    )
    with pytest.raises(lakefs_sdk.exceptions.BadRequestException) as refused:
        sdk.internal_api.create_commit_record(repository.id, record)
    record.commit_id = re.findall("[0-9a-f]{64}", str(refused.value.body))[1]
    sdk.internal_api.create_commit_record(repository.id, record)

    assert [one.path for one in branch.objects()] == ["a"]
    assert sdk.commits_api.get_commit(repository.id, record.commit_id).message == "by hand"


def test_symlinks_are_written_and_commits_prepared_as_a_task(sdk: LakeFSClient, repository: lakefs.Repository) -> None:
    branch = repository.branch("main")
    branch.object("t/d=1/a").upload("a")
    branch.commit("a")
    rules = lakefs_sdk.GarbageCollectionRules(default_retention_days=7, branches=[])
    sdk.repositories_api.set_gc_rules(repository.id, rules)

    written = sdk.internal_api.create_symlink_file(repository.id, "main", location="t")
    task = sdk.internal_api.prepare_garbage_collection_commits_async(repository.id).id
    while True:
        status = sdk.internal_api.prepare_garbage_collection_commits_status(repository.id, task)
        if status.completed:
            break
        time.sleep(0.01)

    assert "/_lakefs/symlinks/" in written.location
    assert status.error is None
    assert status.result.run_id in status.result.gc_commits_location
