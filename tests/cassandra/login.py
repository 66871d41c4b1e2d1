"""A node that wants a login and checks permissions."""

from __future__ import annotations

SETTINGS = {
    "authenticator": "PasswordAuthenticator",
    "authorizer": "CassandraAuthorizer",
    "permissions_validity": "0ms",
    "roles_validity": "0ms",
}
"""Entries of cassandra.yaml; what an administrator changes holds at once."""
