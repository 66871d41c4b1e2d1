"""An authority, a node's certificate and a client's, for a node that wants TLS; made for each run."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

PASSWORD = "keep-out"
"""The password of the stores, and of the client's encrypted key."""

Key = ec.EllipticCurvePrivateKey


class Certificates:
    """Writes an authority's, a node's and a client's certificates into a folder.

    :param addresses: the addresses that the node's certificate names.
    """

    def __init__(self, folder: Path, *addresses: str) -> None:
        self.ca, self.stranger = folder / "ca.pem", folder / "stranger.pem"
        self.client, self.client_key = folder / "client.pem", folder / "client.key"
        self.encrypted_key = folder / "encrypted.key"
        self.keystore, self.truststore = folder / "node.p12", folder / "trust.p12"
        authority, key = _authority("wal_sink test")
        self.ca.write_bytes(_pem(authority))
        self.stranger.write_bytes(_pem(_authority("another authority")[0]))
        node, node_key = _signed("node", key, authority, addresses)
        encryption = BestAvailableEncryption(PASSWORD.encode())
        self.keystore.write_bytes(
            pkcs12.serialize_key_and_certificates(b"node", node_key, node, [authority], encryption)
        )
        trusted = pkcs12.PKCS12Certificate(authority, b"ca")
        self.truststore.write_bytes(pkcs12.serialize_java_truststore([trusted], encryption))
        client, client_key = _signed("client", key, authority, addresses)
        self.client.write_bytes(_pem(client))
        self.client_key.write_bytes(_key_pem(client_key, NoEncryption()))
        self.encrypted_key.write_bytes(_key_pem(client_key, encryption))

    @property
    def settings(self) -> dict[str, object]:
        """Entries of cassandra.yaml for optional TLS. A client that uses TLS needs a certificate."""
        return {
            "client_encryption_options": {
                "enabled": True,
                "optional": True,
                "require_client_auth": True,
                "keystore": str(self.keystore),
                "keystore_password": PASSWORD,
                "truststore": str(self.truststore),
                "truststore_password": PASSWORD,
                "store_type": "PKCS12",
            }
        }


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: Key, encryption: KeySerializationEncryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def _authority(name: str) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    builder = _builder(subject, subject, key).add_extension(constraints, critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _signed(
    name: str, by: Key, authority: x509.Certificate, addresses: Sequence[str]
) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    named = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    )
    builder = _builder(_name(name), authority.subject, key).add_extension(named, critical=False)
    return builder.sign(by, hashes.SHA256()), key


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
