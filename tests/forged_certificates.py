"""An authority that signs invalid certificates, for tests."""

import inspect
import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rt.net.authority.certificates import CertificateFiles, init_authority

CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH
LOCAL = (x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")))


class Authority:
    """A certificate authority that signs whatever it is told to."""

    def __init__(self, directory):
        self.directory = directory
        self.files = init_authority(directory)
        with open(self.files.cert, "rb") as file:
            self.certificate = x509.load_pem_x509_certificate(file.read())
        with open(self.files.key, "rb") as file:
            self.key = serialization.load_pem_private_key(file.read(), None)

    def forge(
        self,
        path,
        *,
        uris=("rt://publisher/jfk", "rt://session/jfk"),
        hosts=(),
        usages=(CLIENT,),
        start_days=-1,
        days=30,
        signer=None,
        common_name="jfk",
        may_sign=False,
        key_identifier=True,
    ):
        """Write a certificate with any fault; return its files, with the CA that peers trust."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer, issuer_key = signer or (self.certificate.subject, self.key)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        if issuer is None:  # self-signed
            issuer, issuer_key = subject, key
        start = datetime.now(UTC) + timedelta(days=start_days)
        builder = x509.CertificateBuilder(
            issuer,
            subject,
            key.public_key(),
            x509.random_serial_number(),
            start,
            start + timedelta(days=days),
        )
        names = [x509.UniformResourceIdentifier(uri) for uri in uris] + list(hosts)
        extensions = [
            (x509.BasicConstraints(ca=may_sign, path_length=None), True),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        ]
        if key_identifier:
            identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
            extensions.append((identifier, False))
        if may_sign:
            usage = dict.fromkeys(inspect.signature(x509.KeyUsage).parameters, False)
            usage = x509.KeyUsage(**(usage | {"key_cert_sign": True}))
            extensions.append((usage, True))
        if names:
            extensions.append((x509.SubjectAlternativeName(names), False))
        if usages:
            extensions.append((x509.ExtendedKeyUsage(usages), False))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        certificate = builder.sign(issuer_key, hashes.SHA256())
        files = CertificateFiles(self.files.ca, f"{path}.pem", f"{path}.key")
        with open(files.cert, "wb") as file:
            file.write(certificate.public_bytes(serialization.Encoding.PEM))
        with open(files.key, "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
        return files
