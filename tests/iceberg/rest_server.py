"""Runs a REST catalog: Iceberg's reference server, from the tests of its core, over a catalog in a folder.

`RESTCatalogServlet` checks conditions and applies changes by `CatalogHandlers`, as other servers on Iceberg's
library do. Nothing is compiled: this process drives a Java process by py4j's gateway.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.support.maven_jars import maven_jars
from wal_sink.demo.maven import java_command
from wal_sink.demo.server import HOST

VERSION = "1.10.1"
"""The newest version of Iceberg with a jar of its tests."""

_JARS = (
    f"org.apache.iceberg:iceberg-core:{VERSION}",
    f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
    "org.eclipse.jetty:jetty-servlet:11.0.25",
    "org.xerial:sqlite-jdbc:3.49.1.0",
    "org.slf4j:slf4j-nop:2.0.17",
)


class RestCatalog:
    """The server; it ends with this process."""

    def __init__(self, folder: Path) -> None:
        spark = Path(pyspark.__file__).parent / "jars"
        hadoop = [str(jar) for jar in spark.glob("hadoop-client-*.jar")]
        (py4j,) = spark.glob("py4j-*.jar")
        java = java_command()
        jars = maven_jars(f"iceberg-rest-{VERSION}", _JARS)
        port = launch_gateway(
            jarpath=str(py4j),
            classpath=":".join([f"{jars}/*", *hadoop]),
            java_path=java[-1],
            die_on_exit=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        jvm: Any = self._gateway.jvm
        catalog = jvm.org.apache.iceberg.jdbc.JdbcCatalog()
        hadoop_settings = jvm.org.apache.hadoop.conf.Configuration()
        catalog.setConf(hadoop_settings)
        settings = jvm.java.util.HashMap()
        settings.put("uri", f"jdbc:sqlite:{folder}/rest.db")
        settings.put("warehouse", f"file://{folder}/warehouse")
        settings.put("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO")
        catalog.initialize("backend", settings)
        rest = jvm.org.apache.iceberg.rest
        servlet = rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))
        context = jvm.org.eclipse.jetty.servlet.ServletContextHandler()
        context.setContextPath("/")
        context.addServlet(jvm.org.eclipse.jetty.servlet.ServletHolder(servlet), "/*")
        self._server = jvm.org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress(HOST, 0))
        self._server.setHandler(context)
        self._server.start()
        self.uri = str(self._server.getURI().toString()).rstrip("/")

    def new_table(self) -> dict[str, str]:
        """Return the options of a missing table in a new namespace."""
        return {
            "table": f"s{uuid.uuid4().hex}.orders",
            "iceberg.catalog.type": "rest",
            "iceberg.catalog.uri": self.uri,
        }

    def close(self) -> None:
        """End the server, and its Java."""
        self._server.stop()
        self._gateway.shutdown()
