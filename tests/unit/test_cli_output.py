"""What a command prints of an error."""

from __future__ import annotations

import pytest
import typer

from wal_sink.cli.output import output
from wal_sink.errors import OptionError


@pytest.mark.parametrize("text", ["pip install 'wal_sink[s3]'", "[/mnt/log] is odd", "[applied]"])
def test_brackets_of_an_error_are_no_markup(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A remedy is printed as it is: nothing of it is taken for a style, or for a broken one."""
    with pytest.raises(typer.Exit) as ended, output(as_json=False):
        raise OptionError("It broke", text)
    assert text in capsys.readouterr().err
    assert ended.value.exit_code == OptionError.exit_code
