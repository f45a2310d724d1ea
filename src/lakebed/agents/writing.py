"""Tools that change something: write, commit, propose, plan. They write to the agent's branch, and merge nothing."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from lakebed.base import ACTIONS_FOLDER, Denied, Invalid, RunKind
from lakebed.gc.messages import JobState, JobView, PlanRequest, StartJob
from lakebed.operations import history, objects, repositories
from lakebed.operations.gc import collectors
from lakebed.wire import CommitCreation, PullRequestCreation

from .calling import Call, Tool
from .reading import DATA, ObjectPath, Repository

CONTENT_MAX: Final = 256 << 10
METADATA_MAX: Final = 50
WAIT_S: Final = 20.0
BEAT_S: Final = 0.5
EXAMPLES: Final = 5

Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
Text: TypeAlias = Annotated[str, Meta(max_length=1024)]


class Write(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    repository: Repository
    path: ObjectPath
    content: Annotated[str, Meta(description="The whole object.", max_length=CONTENT_MAX)]
    encoding: Annotated[Literal["utf-8", "base64"], Meta(description="How `content` stands for bytes.")] = "utf-8"
    content_type: Annotated[str, Meta(max_length=100, pattern=r"^[!-~ ]+$")] = "application/octet-stream"
    if_absent: Annotated[bool, Meta(description="Refuse where the path exists.")] = False


async def write(call: Call, given: Write) -> dict[str, object]:
    if given.path.startswith(ACTIONS_FOLDER):
        # They have the server send values anywhere, and decide which checks a merge passes.
        raise Denied(f"no agent writes action files ({ACTIONS_FOLDER})", path=given.path)
    content = _content(given)
    writer = await call.writer(given.repository)
    headers = {"content-type": given.content_type, "content-length": str(len(content))}
    if given.if_absent:
        headers["if-none-match"] = "*"
    stats = await call.do(
        objects.UPLOAD_OBJECT,
        given.repository,
        writer.branch,
        through=writer.operations,
        content=content,
        headers=headers,
        query={"path": given.path},
    )
    answer: dict[str, object] = {"branch": writer.branch, "path": stats.path}
    answer |= {"size_bytes": stats.size_bytes, "checksum": stats.checksum}
    return answer | {"note": _joined(writer.note, "Not committed yet: call commit")}


def _content(given: Write) -> bytes:
    if given.encoding == "utf-8":
        return given.content.encode()
    try:
        return base64.b64decode(given.content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"content is not base64: {error}") from error


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    repository: Repository
    message: Annotated[str, Meta(description="What changes, and why.", min_length=1, max_length=4096)]
    metadata: Annotated[dict[Key, Text], Meta(max_length=METADATA_MAX)] = {}


async def commit(call: Call, given: Commit) -> dict[str, object]:
    writer = await call.writer(given.repository)
    body = CommitCreation(message=given.message, metadata={**given.metadata})
    made = await call.do(history.COMMIT, given.repository, writer.branch, through=writer.operations, body=body)
    note = _joined(writer.note, "Call propose to ask for its merge")
    return {"branch": writer.branch, "commit": made.id, "committer": made.committer, "note": note}


class Propose(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    repository: Repository
    title: Annotated[str, Meta(min_length=1, max_length=200)]
    description: Annotated[str, Meta(description="What changed, and why.", max_length=8192)] = ""
    destination: Annotated[
        str, Meta(description="The branch to merge into. Without it: the default branch.", max_length=255)
    ] = ""


async def propose(call: Call, given: Propose) -> dict[str, object]:
    writer = await call.writer(given.repository)
    destination = given.destination
    if not destination:
        destination = (await call.do(repositories.GET_REPOSITORY, given.repository)).default_branch
    if destination == writer.branch:
        raise Invalid(f"writes go to {destination} itself: name another destination, or propose nothing")
    left = await call.do(history.DIFF_BRANCH, given.repository, writer.branch, query={"amount": 1})
    if left.results:
        raise Invalid(f"the branch {writer.branch} has changes that are not committed: call commit first")
    body = PullRequestCreation(
        title=given.title,
        description=given.description,
        source_branch=writer.branch,
        destination_branch=destination,
    )
    made = await call.do(repositories.CREATE_PULL_REQUEST, given.repository, through=writer.operations, body=body)
    return {
        "pull_request": made.id,
        "source": writer.branch,
        "destination": destination,
        "note": _joined(writer.note, "a person looks at it and merges it: no tool does"),
    }


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    repository: Repository
    kinds: Annotated[
        list[Literal["uncommitted", "committed", "metadata"]],
        Meta(description="What to plan. Without it: all that the rules of the repository allow.", max_length=3),
    ] = []
    job: Annotated[str, Meta(description="Look at a plan that was begun: its `job`.", max_length=64)] = ""


async def plan(call: Call, given: Plan) -> dict[str, object]:
    call.scope.check(given.repository)
    if given.job:
        job = await call.do(collectors.GET_GC_JOB, given.repository, given.job)
        if not isinstance(job.request, PlanRequest):
            raise Invalid(f"the job {given.job} is not a plan: a person looks at it with `lakebed gc job show`")
    else:
        request = PlanRequest(kinds=tuple(RunKind(kind) for kind in dict.fromkeys(given.kinds)))
        job = await call.do(collectors.START_GC_JOB, given.repository, body=StartJob(request=request))
    ends_s = time.monotonic() + WAIT_S
    while job.state is JobState.RUNNING and time.monotonic() < ends_s:
        await asyncio.sleep(BEAT_S)
        job = await call.do(collectors.GET_GC_JOB, given.repository, job.id)
    answer: dict[str, object] = {"job": job.id, "state": job.state.value}
    if job.state is JobState.RUNNING:
        return answer | {"note": "it goes on: call plan again with this job"}
    if job.error:
        answer["error"] = job.error[:1000]
    return answer | {
        "plans": await _plans(call, given.repository, job),
        "note": "nothing was deleted: a person applies",
    }


async def _plans(call: Call, repository: str, job: JobView) -> list[dict[str, object]]:
    plans: list[dict[str, object]] = []
    for result in job.results:
        shown: dict[str, object] = {
            "run": result.run_id,
            "kind": result.kind.value if result.kind else "",
            "objects": result.objects,
            "size_bytes": result.size_bytes,
        }
        if result.run_id and result.objects:
            query = {"amount": EXAMPLES}
            found = await call.do(collectors.LIST_GC_PLAN_OBJECTS, repository, result.run_id, query=query)
            shown["examples"] = msgspec.to_builtins(found.objects)
        plans.append(shown)
    return plans


def _joined(*notes: str) -> str:
    return ". ".join(filter(None, notes))


WRITING: Final = (
    Tool(
        name="write",
        title="Write an object",
        description="Write one object to the agent's branch, of at most 256 KiB. It is not committed by that. "
        "Commits keep an object that it replaces.",
        arguments=Write,
        operations=(objects.UPLOAD_OBJECT,),
        handler=write,
        changes=True,
    ),
    Tool(
        name="commit",
        title="Commit what was written",
        description="Commit every uncommitted change of the agent's branch.",
        arguments=Commit,
        operations=(history.COMMIT,),
        handler=commit,
        changes=True,
    ),
    Tool(
        name="propose",
        title="Open a pull request",
        description="Open a pull request from the agent's branch, with what is committed there. A person merges it.",
        arguments=Propose,
        operations=(repositories.GET_REPOSITORY, history.DIFF_BRANCH, repositories.CREATE_PULL_REQUEST),
        handler=propose,
        changes=True,
    ),
    Tool(
        name="plan",
        title="Plan a collection",
        description="Plan which objects a collection would delete, and return a summary. It deletes nothing, and no "
        f"tool applies a plan. Waits up to 20 seconds. {DATA}",
        arguments=Plan,
        operations=(collectors.START_GC_JOB, collectors.GET_GC_JOB, collectors.LIST_GC_PLAN_OBJECTS),
        handler=plan,
        changes=True,
    ),
)
