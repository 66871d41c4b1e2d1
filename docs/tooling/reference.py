"""Makes parts of the reference from the code: options, errors, commands, Python functions and metrics.

A page has such a part between a line `<!-- generated: NAME -->` and a line `<!-- end -->`. `python -m
docs.tooling.reference` writes the parts again, and a test compares them.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from wal_sink import errors
from wal_sink.builtin_targets import BUILTIN
from wal_sink.cli.inspect import option_groups
from wal_sink.cli.main import app
from wal_sink.errors import EXIT_CODES, WalSinkError
from wal_sink.metrics.prometheus import QueryMetrics
from wal_sink.spark import api
from wal_sink.spark.batch_writer import batch_writer

TITLES = {"": "Every query"} | {name: info.title for name, info in BUILTIN.items()}


def options() -> str:
    """Return tables of the options of the sink and of the installed targets."""
    parts = []
    for group in option_groups():
        parts.append(f"## {TITLES.get(group.name, group.name)}")
        if group.name:
            parts.append(f'For `.option("target", "{group.name}")`.')
        rows = []
        for entry in group.options:
            text = entry.text
            if entry.environment:
                text += f" Also from the variable `{entry.environment}`."
            default = entry.default or "none"
            if default not in ("none", "required") and " " not in default:
                default = f"`{default}`"
            takes = f"{entry.takes}; secret" if entry.secret else entry.takes
            rows.append((f"`{entry.name}`", takes, default, text))
        table = _table(("option", "takes", "default", "meaning"), rows)
        parts.append(f'<div class="options" markdown="1">\n\n{table}\n\n</div>')
    return _page(parts)


def error_kinds() -> list[type[WalSinkError]]:
    """Return the classes of all errors, by exit code and place in the module."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    mine = [kind for kind in kinds if issubclass(kind, WalSinkError)]
    return sorted(mine, key=lambda kind: (kind.exit_code, _line(kind)))


def _line(kind: type) -> int:
    return inspect.getsourcelines(kind)[1]


def explanation(kind: type[WalSinkError]) -> tuple[str, str]:
    """Return the meaning of an error, and its remedy."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("\n:param")[0]
    meaning, separator, remedy = text.partition("What to do: ")
    if not separator:
        raise LookupError(f"the docstring of {kind.__name__} has no sentence `What to do: …`")
    return meaning.strip(), remedy.strip()


def error_page() -> str:
    """Return a table of the exit codes, and a section for each error."""
    codes: dict[int, list[str]] = {code: [] for code in EXIT_CODES}
    for kind in error_kinds():
        codes[kind.exit_code].append(f"[`{kind.__name__}`](#{kind.__name__.lower()})")
    lines = [(str(code), text, ", ".join(codes[code])) for code, text in EXIT_CODES.items()]
    parts = [_table(("exit code", "the operator", "errors"), lines)]
    for kind in error_kinds():
        meaning, remedy = explanation(kind)
        passes = (
            " The error may pass by itself, so the flusher tries again." if kind.transient else ""
        )
        parts += [
            f"## {kind.__name__}",
            f"Exit code {kind.exit_code}.{passes} {meaning}",
            f"**What to do.** {remedy[:1].upper()}{remedy[1:]}",
        ]
    return _page(parts)


def commands() -> str:
    """Return a section for each command, with its arguments and options."""
    group: Any = typer.main.get_group(app)
    context = group.context_class(group, info_name="wal-sink")
    parts: list[str] = []
    panel = ""
    for name, command in group.commands.items():
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            parts.append(f"## {panel}")
        parts += _command(
            name, command, command.context_class(command, info_name=name, parent=context)
        )
    return _page(parts)


def _command(name: str, command: Any, context: Any) -> Iterator[str]:
    yield f"### wal-sink {name}"
    yield f"```text\nwal-sink {name} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield inspect.cleandoc(command.help)
    rows = []
    for parameter in command.get_params(context):
        if "--help" in parameter.opts:
            continue
        text = parameter.help or ""
        written = parameter.metavar
        if parameter.param_type_name == "option":
            # A flag has no type. The bar of a type such as `int|float` would end the cell.
            takes = "" if parameter.is_flag else parameter.display_type_rich(context)
            takes = takes.replace("|", ", ")
            written = f"{', '.join(parameter.opts)} {takes}".strip()
            if isinstance(parameter.default, str | int) and parameter.default not in (False, ""):
                text += f" Default: `{parameter.default}`."
        rows.append((f"`{written}`", text))
    yield _table(("argument or option", "meaning"), rows)


def metrics() -> str:
    """Return a table of the metrics of a query."""
    query = QueryMetrics(("", ""), "", "", lambda: None)
    rows = [
        (f"`{_exposed(family.name, family.type)}`", family.type, family.documentation)
        for family in query.families(None, 0)
    ]
    return _page([_table(("metric", "kind", "meaning"), sorted(rows))])


def _exposed(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    text = re.sub(r"<([a-z ]+)>", r"&lt;\1&gt;", text) if "`" not in text else text
    return " ".join(text.replace("|", "\\|").split())


def _page(parts: list[str]) -> str:
    return "\n\n".join(parts) + "\n"


def python() -> str:
    """Return a section for each public function, and for each method of the handle `Sink`."""
    functions = (api.register, api.await_flushed, api.status, api.check, batch_writer)
    sink = api.Sink
    methods = (sink.await_flushed, sink.status, sink.failure, sink.follow, sink.close)
    parts = [part for function in functions for part in _function("wal_sink", function)]
    parts += ["## The handle", "`register` returns a `Sink`. It is a context manager."]
    return _page(parts + [part for method in methods for part in _function("Sink", method)])


def _function(owner: str, function: Callable[..., object]) -> Iterator[str]:
    arguments = re.sub("(: |-> )'([^']+)'", r"\1\2", str(inspect.signature(function)))
    signature = (
        f"{owner}.{function.__name__}{arguments.replace('(self, ', '(').replace('self', '')}"
    )
    text, *fields = re.split("^:", inspect.cleandoc(function.__doc__ or ""), flags=re.MULTILINE)
    yield f"### {owner}.{function.__name__}"
    yield f"```text\n{textwrap.fill(signature, 100, subsequent_indent='    ')}\n```"
    yield text.replace("::\n", ":\n").strip()
    if fields:
        yield "\n".join("- " + _FIELD.sub(r"\1`\2`: ", " ".join(field.split())) for field in fields)


_FIELD = re.compile("^(?:param )?(raises )?([A-Za-z_]+): ")
"""The begin of a field of a docstring, such as `param name: `, `return: ` or `raises Error: `."""


GENERATED: dict[str, Callable[[], str]] = {
    "options": options,
    "errors": error_page,
    "commands": commands,
    "python": python,
    "metrics": metrics,
}
"""The functions that make the parts, by NAME."""

_PART = re.compile(r"^(<!-- generated: (\w+) -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)


def filled(page: str) -> str:
    """Return a page with its generated parts as the code is now."""
    return _PART.sub(lambda part: f"{part[1]}\n{GENERATED[part[2]]()}\n{part[3]}", page)


def write() -> None:
    """Write the generated parts of all pages."""
    for path in (Path(__file__).parents[1] / "reference").glob("*.md"):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
