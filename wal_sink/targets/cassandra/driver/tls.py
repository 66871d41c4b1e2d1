"""Makes the TLS context at each connection, so that files that were renewed are read again."""

from __future__ import annotations

import ssl
import zipfile
from pathlib import Path

from wal_sink.errors import OptionError
from wal_sink.options import fields
from wal_sink.targets.cassandra.driver.credentials import with_environment
from wal_sink.targets.cassandra.options import CassandraOptions

_CONFIG = "config.json"
"""A file that every secure connect bundle holds."""


def tls_context(options: CassandraOptions) -> ssl.SSLContext | None:
    """Make the context of connections; None when they are not encrypted.

    :raises OptionError: a file is missing, unreadable or not what it should be.
    """
    if not options.ssl_enabled:
        return None
    context = ssl.create_default_context(cafile=_file(options, "ssl_ca_certificate"))
    context.check_hostname = options.ssl_check_hostname
    if certificate := _file(options, "ssl_client_certificate"):
        key = _file(options, "ssl_client_key")
        # Never an empty password: OpenSSL would ask at the terminal for that of an encrypted key.
        password = with_environment(options).ssl_client_key_password or "no password given"
        try:
            context.load_cert_chain(certificate, key, password)
        except (ssl.SSLError, OSError) as error:
            raise OptionError(
                f"Option cassandra.ssl.clientCertificate: {certificate} and {key or 'the key in it'}"
                f" cannot be used: {error}",
                "Give certificate chain and key as PEM files that belong together, and"
                " cassandra.ssl.clientKeyPassword when the key is encrypted.",
            ) from error
    return context


def bundle(options: CassandraOptions) -> str | None:
    """Return the path of the secure connect bundle; None when there is none.

    :raises OptionError: it is missing, unreadable or no bundle.
    """
    option, path = "cassandra.secureConnectBundle", options.secure_connect_bundle
    if not path:
        return None
    _read(option, path)
    try:
        with zipfile.ZipFile(path) as opened:
            opened.getinfo(_CONFIG)
    except (zipfile.BadZipFile, KeyError) as error:
        raise OptionError(
            f"Option {option}: {path} is no secure connect bundle: {error}",
            "Download the bundle again, and give the zip file as it is.",
        ) from error
    return path


def _file(options: CassandraOptions, field: str) -> str | None:
    """Return the path that an option gives, after a look whether the file is PEM."""
    path = getattr(options, field)
    if not path:
        return None
    option = next(each.encode_name for each in fields(CassandraOptions) if each.name == field)
    if b"-----BEGIN " not in _read(option, path):
        raise OptionError(
            f"Option {option}: {path} is no PEM file.",
            "Give it as PEM, which begins with -----BEGIN; keytool and openssl convert other formats.",
        )
    return str(path)


def _read(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(
            f"Option {option}: {path} cannot be read: {error.strerror}.",
            "Give the path of a file that is there, and readable, on the driver and on every executor.",
        ) from error
