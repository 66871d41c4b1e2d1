# Flushes all queries below a place: docker build -f docker/flusher.Dockerfile -t wal_sink-flusher .
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

RUN useradd --system --create-home flusher
ARG PIP_INDEX_URL
ARG EXTRAS=postgresql,kafka,delta,iceberg,sql,s3
COPY pyproject.toml README.md LICENSE hatch_build.py /src/
COPY wal_sink /src/wal_sink
COPY state_backends /src/state_backends
RUN python3 -m venv /opt/flusher && /opt/flusher/bin/pip install --no-cache-dir "/src[${EXTRAS}]"

USER flusher
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s \
  CMD ["/opt/flusher/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9123/metrics', timeout=5)"]
ENTRYPOINT ["/opt/flusher/bin/wal-sink", "flush", "--follow", "--metrics-port", "9123", "--metrics-host", "0.0.0.0"]
CMD ["--under", "/data"]
