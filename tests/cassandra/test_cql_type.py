"""CQL types as `system_schema` prints them, read into trees."""

from __future__ import annotations

import pytest

from wal_sink.targets.cassandra.types import CqlType, UserTypes, parse, user_type_names

TYPES: UserTypes = {
    "Ad,dr<": (('a "b', "int"), ("inner", 'frozen<"in ner">')),
    "in ner": (("x", "list<text>"),),
    "set": (("x", "int"),),
    "plain": (("x", "int"),),
}


def shape(tree: CqlType) -> str:
    """Print a tree with `!` for frozen."""
    parts = f"({' '.join(shape(part) for part in tree.parts)})" if tree.parts else ""
    return f"{tree.kind}{'!' if tree.frozen else ''}{parts}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", "int"),
        ("list<int>", "list(int!)"),
        ("frozen<list<int>>", "list!(int!)"),
        ("map<text, frozen<set<int>>>", "map(text! set!(int!))"),
        ("frozen<tuple<int, map<text, text>, uuid>>", "tuple!(int! map!(text! text!) uuid!)"),
        ("vector<float, 3>", "vector!(float!)"),
        ("plain", "udt(int!)"),
        ("frozen<plain>", "udt!(int!)"),
        ('"set"', "udt(int!)"),
        ('frozen<"Ad,dr<">', "udt!(int! udt!(list!(text!)))"),
        (
            'map<"in ner", frozen<"Ad,dr<">>',
            "map(udt!(list!(text!)) udt!(int! udt!(list!(text!))))",
        ),
        ("set", "set"),
        ("vector<float>", "vector<float>"),
        ("map<int>", "map<int>"),
        ("list<>", "list<>"),
        ("'org.example.Custom'", "'org.example.Custom'"),
        ("'org.example.Custom(a,b)'", "'org.example.Custom(a,b)'"),
        ("", ""),
    ],
)
def test_cql_type_freezes_what_is_nested(text: str, expected: str) -> None:
    """What is inside of anything is frozen; what is not understood stays as it is."""
    tree = parse(text, TYPES)
    assert shape(tree) == expected
    assert tree.label == text


def test_cql_type_reads_quoted_names_and_vector_lengths() -> None:
    """Names are unquoted; a vector knows its length."""
    tree = parse('frozen<"Ad,dr<">', TYPES)
    assert (tree.name, tree.fields) == ("Ad,dr<", ('a "b', "inner"))
    assert list(user_type_names(tree)) == ["Ad,dr<", "in ner"]
    assert parse("vector<float, 1536>", {}).length == 1536
