"""Fail unless the tests that need real servers ran: a skipped or deselected test proves nothing."""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

AT_LEAST = {
    "tests.cassandra": 30,
    "tests.docker": 4,
    "tests.postgresql": 150,
    "tests.sql": 300,
    "tests.kafka": 50,
    "tests.delta": 100,
    "tests.spark": 15,
    "tests.kills": 60,
    "tests.protocol": 100,
    "tests.metrics": 25,
}

cases = list(ElementTree.parse(Path(sys.argv[1])).iter("testcase"))  # noqa: S314 - written by us
skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
ran = Counter(".".join(str(case.get("classname")).split(".")[:2]) for case in cases)
too_few = {name: ran[name] for name, wanted in AT_LEAST.items() if ran[name] < wanted}
if skipped or too_few:
    sys.exit(f"not a full run: skipped {skipped}, too few {too_few} of {AT_LEAST}")
sys.stdout.write(f"full run: {dict(ran)}\n")
