"""Logins and their sessions, users and their key pairs, groups, policies."""

from __future__ import annotations

from typing import Final

from lakebed import wire

from .operation import (
    ALL,
    GROUP,
    LOGGED_IN,
    NEW_GROUP,
    NEW_POLICY,
    NEW_USER,
    NOTHING,
    POLICY,
    POLICY_BYTES_MAX,
    PUBLIC,
    PUBLIC_BYTES_MAX,
    USER,
    Parameter,
    create,
    delete,
    flag,
    get,
    listing,
    on,
    post,
    put,
)

_USERS: Final = "/auth/users"
_USER: Final = "/auth/users/{userId}"
_KEYS: Final = _USER + "/credentials"
_GROUP: Final = "/auth/groups/{groupId}"
_POLICY: Final = "/auth/policies/{policyId}"

LOGIN: Final = post(
    "login",
    "/auth/login",
    wire.LoginInformation,
    wire.AuthenticationToken,
    PUBLIC,
    "Exchange a key pair for a token, which is also set as a cookie.",
    body_bytes_max=PUBLIC_BYTES_MAX,
)
GET_AUTH_CAPABILITIES: Final = get(
    "getAuthCapabilities",
    "/auth/capabilities",
    wire.AuthCapabilities,
    PUBLIC,
    "Return the abilities of logins on this server.",
)
GET_CURRENT_USER: Final = get("getCurrentUser", "/user", wire.CurrentUser, LOGGED_IN, "Return the caller.")

LIST_USERS: Final = listing("listUsers", _USERS, wire.UserList, on(ALL, "auth:ListUsers"), "List users by id.")
CREATE_USER: Final = create(
    "createUser",
    _USERS,
    wire.UserCreation,
    wire.User,
    on(NEW_USER, "auth:CreateUser"),
    "Make a user without key pair and without permissions.",
)
GET_USER: Final = get("getUser", _USER, wire.User, on(USER, "auth:ReadUser"), "Return a user.")
DELETE_USER: Final = delete(
    "deleteUser", _USER, on(USER, "auth:DeleteUser"), "Delete a user, its key pairs, memberships and attached policies."
)
LIST_USER_CREDENTIALS: Final = listing(
    "listUserCredentials",
    _KEYS,
    wire.CredentialsList,
    on(USER, "auth:ListCredentials"),
    "List a user's key pairs, without secrets.",
)
CREATE_CREDENTIALS: Final = post(
    "createCredentials",
    _KEYS,
    NOTHING,
    wire.CredentialsWithSecret,
    on(USER, "auth:CreateCredentials"),
    "Make a key pair. The secret is returned here, and never again.",
    status=201,
)
GET_CREDENTIALS: Final = get(
    "getCredentials",
    _KEYS + "/{accessKeyId}",
    wire.Credentials,
    on(USER, "auth:ReadCredentials"),
    "Return a key pair, without its secret.",
)
DELETE_CREDENTIALS: Final = delete(
    "deleteCredentials", _KEYS + "/{accessKeyId}", on(USER, "auth:DeleteCredentials"), "Delete a key pair."
)
LIST_USER_GROUPS: Final = listing(
    "listUserGroups", _USER + "/groups", wire.GroupList, on(USER, "auth:ReadUser"), "List the groups of a user."
)
LIST_USER_POLICIES: Final = listing(
    "listUserPolicies",
    _USER + "/policies",
    wire.PolicyList,
    on(USER, "auth:ReadUser"),
    "List the policies attached to a user; `effective` adds those of its groups.",
    flag("effective"),
)
DECIDE: Final = get(
    "decide",
    _USER + "/may",
    wire.Decision,
    on(USER, "auth:ReadUser"),
    "Return whether a user may do an action on a resource, and the statement that decides it. `branch`, `tag` or `ref`,"
    " `address` and `time` say under which conditions; without a time it is now.",
    Parameter("action", is_required=True),
    Parameter("resource", default="*"),
    Parameter("branch"),
    Parameter("tag"),
    Parameter("ref"),
    Parameter("address"),
    Parameter("time"),
)
ATTACH_POLICY_TO_USER: Final = put(
    "attachPolicyToUser",
    _USER + "/policies/{policyId}",
    NOTHING,
    NOTHING,
    on(USER, "auth:AttachPolicy"),
    "Attach a policy to a user.",
    status=201,
)
DETACH_POLICY_FROM_USER: Final = delete(
    "detachPolicyFromUser",
    _USER + "/policies/{policyId}",
    on(USER, "auth:DetachPolicy"),
    "Detach a policy from a user.",
)

LIST_GROUPS: Final = listing(
    "listGroups",
    "/auth/groups",
    wire.GroupList,
    on(ALL, "auth:ListGroups"),
    "List groups by id, with the built-in ones.",
)
CREATE_GROUP: Final = create(
    "createGroup",
    "/auth/groups",
    wire.GroupCreation,
    wire.Group,
    on(NEW_GROUP, "auth:CreateGroup"),
    "Make an empty group.",
)
GET_GROUP: Final = get("getGroup", _GROUP, wire.Group, on(GROUP, "auth:ReadGroup"), "Return a group.")
DELETE_GROUP: Final = delete("deleteGroup", _GROUP, on(GROUP, "auth:DeleteGroup"), "Delete a group, not its members.")
LIST_GROUP_MEMBERS: Final = listing(
    "listGroupMembers", _GROUP + "/members", wire.UserList, on(GROUP, "auth:ReadGroup"), "List the members of a group."
)
ADD_GROUP_MEMBERSHIP: Final = put(
    "addGroupMembership",
    _GROUP + "/members/{userId}",
    NOTHING,
    NOTHING,
    on(GROUP, "auth:AddGroupMember"),
    "Add a user to a group.",
    status=201,
)
DELETE_GROUP_MEMBERSHIP: Final = delete(
    "deleteGroupMembership",
    _GROUP + "/members/{userId}",
    on(GROUP, "auth:RemoveGroupMember"),
    "Remove a user from a group.",
)
LIST_GROUP_POLICIES: Final = listing(
    "listGroupPolicies",
    _GROUP + "/policies",
    wire.PolicyList,
    on(GROUP, "auth:ReadGroup"),
    "List the policies attached to a group.",
)
ATTACH_POLICY_TO_GROUP: Final = put(
    "attachPolicyToGroup",
    _GROUP + "/policies/{policyId}",
    NOTHING,
    NOTHING,
    on(GROUP, "auth:AttachPolicy"),
    "Attach a policy to a group.",
    status=201,
)
DETACH_POLICY_FROM_GROUP: Final = delete(
    "detachPolicyFromGroup",
    _GROUP + "/policies/{policyId}",
    on(GROUP, "auth:DetachPolicy"),
    "Detach a policy from a group.",
)
SET_GROUP_ACL: Final = post(
    "setGroupACL",
    _GROUP + "/acl",
    wire.ACL,
    NOTHING,
    on(GROUP, "auth:AttachPolicy"),
    "Give a group one access level: Read, Write, Super or Admin.",
    status=201,
    repeatable=True,
)
GET_GROUP_ACL: Final = get(
    "getGroupACL", _GROUP + "/acl", wire.ACL, on(GROUP, "auth:ReadGroup"), "Return the access level of a group."
)

LIST_POLICIES: Final = listing(
    "listPolicies",
    "/auth/policies",
    wire.PolicyList,
    on(ALL, "auth:ListPolicies"),
    "List policies by id, with the built-in ones.",
)
CREATE_POLICY: Final = post(
    "createPolicy",
    "/auth/policies",
    wire.Policy,
    wire.Policy,
    on(NEW_POLICY, "auth:CreatePolicy"),
    "Make a policy.",
    status=201,
    creates=True,
    body_bytes_max=POLICY_BYTES_MAX,
)
GET_POLICY: Final = get("getPolicy", _POLICY, wire.Policy, on(POLICY, "auth:ReadPolicy"), "Return a policy.")
UPDATE_POLICY: Final = put(
    "updatePolicy",
    _POLICY,
    wire.Policy,
    wire.Policy,
    on(POLICY, "auth:UpdatePolicy"),
    "Replace a policy for every user and group that has it.",
    body_bytes_max=POLICY_BYTES_MAX,
)
DELETE_POLICY: Final = delete(
    "deletePolicy", _POLICY, on(POLICY, "auth:DeletePolicy"), "Delete a policy, and detach it everywhere."
)

_PRINCIPALS: Final = _USER + "/external/principals"
_PRINCIPAL: Final = Parameter("principalId", is_required=True)
EXTERNAL_PRINCIPAL_LOGIN: Final = post(
    "externalPrincipalLogin",
    "/auth/external/principal/login",
    wire.ExternalLoginInformation,
    wire.AuthenticationToken,
    PUBLIC,
    "Log in with an identity of another provider: an `id_token` of OpenID Connect, or an `identity_token` of AWS.",
    body_bytes_max=PUBLIC_BYTES_MAX,
)
STS_LOGIN: Final = post(
    "stsLogin",
    "/sts/login",
    wire.StsAuthRequest,
    wire.AuthenticationToken,
    PUBLIC,
    "Log in with a code of the provider of OpenID Connect.",
    body_bytes_max=PUBLIC_BYTES_MAX,
)
CREATE_USER_EXTERNAL_PRINCIPAL: Final = post(
    "createUserExternalPrincipal",
    _PRINCIPALS,
    wire.ExternalPrincipalCreation,
    NOTHING,
    on(USER, "auth:CreateUserExternalPrincipal"),
    "Let an identity of another provider stand for a user.",
    _PRINCIPAL,
    status=201,
    creates=True,
    # A list of maps is the slowest record to decode: 1 MiB of it took 58 ms.
    body_bytes_max=64 << 10,
)
DELETE_USER_EXTERNAL_PRINCIPAL: Final = delete(
    "deleteUserExternalPrincipal",
    _PRINCIPALS,
    on(USER, "auth:DeleteUserExternalPrincipal"),
    "Let an identity stand for its user no more, and end its logins.",
    _PRINCIPAL,
)
LIST_USER_EXTERNAL_PRINCIPALS: Final = listing(
    "listUserExternalPrincipals",
    _PRINCIPALS + "/ls",
    wire.ExternalPrincipalList,
    on(USER, "auth:ReadUser"),
    "List the identities of other providers that stand for a user.",
)
GET_EXTERNAL_PRINCIPAL: Final = get(
    "getExternalPrincipal",
    "/auth/external/principals",
    wire.ExternalPrincipal,
    on(ALL, "auth:ReadExternalPrincipal"),
    "Return the user that an identity of another provider stands for.",
    _PRINCIPAL,
)

OIDC_LOGIN: Final = get(
    "oidcLogin",
    "/oidc/login",
    NOTHING,
    PUBLIC,
    "Begin a login in a browser: send it to the provider of OpenID Connect, which sends it back to `oauthCallback`.",
    status=302,
)
LOGOUT: Final = post(
    "logout",
    "/auth/logout",
    NOTHING,
    NOTHING,
    LOGGED_IN,
    "End the session of the token or cookie that was sent.",
    status=204,
    repeatable=True,
)
CREATE_LOGIN_TICKET: Final = post(
    "createLoginTicket",
    "/auth/tickets",
    NOTHING,
    wire.LoginTicket,
    LOGGED_IN,
    "Make the ticket of a link that logs a browser of this machine in as the caller, once, within a minute.",
    status=201,
)
LOG_IN_BY_TICKET: Final = post(
    "logInByTicket",
    "/auth/login/ticket",
    wire.TicketLogin,
    wire.AuthenticationToken,
    PUBLIC,
    "Use a ticket up, and exchange it for a token, which is also set as a cookie.",
    body_bytes_max=PUBLIC_BYTES_MAX,
)
LIST_SESSIONS: Final = get(
    "listSessions",
    "/auth/users/{userId}/sessions",
    wire.LoginSessionList,
    on(USER, "auth:ListCredentials"),
    "List the logins of a user that go on.",
)
DELETE_SESSION: Final = delete(
    "deleteSession",
    "/auth/users/{userId}/sessions/{sessionId}",
    on(USER, "auth:DeleteCredentials"),
    "End a login of a user.",
)
