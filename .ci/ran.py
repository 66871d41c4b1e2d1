"""Fail unless the tests that need real servers ran: a skipped or deselected test proves nothing.

The numbers are about half of the tests of each folder. A folder that lost its server
fails; a test more or less does not.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

AT_LEAST = {
    "tests.cassandra": 600,
    "tests.connect": 10,
    "tests.delta": 50,
    "tests.docker": 4,
    "tests.kafka": 25,
    "tests.kills": 10,
    "tests.metrics": 12,
    "tests.postgresql": 75,
    "tests.protocol": 250,
    "tests.spark": 60,
    "tests.sql": 140,
}

cases = list(ElementTree.parse(Path(sys.argv[1])).iter("testcase"))  # noqa: S314 - written by us
skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
ran = Counter(".".join(str(case.get("classname")).split(".")[:2]) for case in cases)
too_few = {name: ran[name] for name, wanted in AT_LEAST.items() if ran[name] < wanted}
if skipped or too_few:
    sys.exit(f"not a full run: skipped {skipped}, too few {too_few} of {AT_LEAST}")
sys.stdout.write(f"full run: {dict(ran)}\n")
