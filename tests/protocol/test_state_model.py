"""The transitions of the state in every order of steps. With each condition off, a promise breaks."""

from __future__ import annotations

import pytest

from tests.protocol.cases import covered
from tests.protocol.state_model.conditions import SWITCHES
from tests.protocol.state_model.explore import explore
from tests.protocol.state_model.numbers import Numbers
from tests.protocol.state_model.numbers import explore as explore_numbers
from tests.protocol.state_model.settings import SETTINGS, Case
from tests.protocol.state_model.switched_off import SWITCHED_OFF


def params(cases: list[Case]) -> list[object]:
    """Return one parameter for each case. `make test-all` runs the long ones."""
    return [
        pytest.param(
            case,
            marks=[pytest.mark.test_all] if case.long else [],
            id=case.name.replace(",", "").replace(" ", "-"),
        )
        for case in cases
    ]


@pytest.mark.parametrize("case", params([case for case in SETTINGS if not case.broken]))
def test_every_order_of_steps_keeps_the_promises(case: Case) -> None:
    result = explore(case.setting, seconds=180)
    covered(f"state model, {case.name}", f"{result.states:,} states")
    assert result.broken == "", "\n".join(result.trace)
    assert result.stops.keys() <= case.stops, result.stops
    assert result.complete


@pytest.mark.parametrize("case", params([case for case in SETTINGS if case.broken]))
def test_documented_limit_is_reached_by_a_history(case: Case) -> None:
    """A limit that no history reaches any more must be removed from the documentation."""
    assert explore(case.setting).broken.startswith(case.broken)


@pytest.mark.parametrize("case", params(SWITCHED_OFF))
def test_condition_switched_off_breaks_a_promise(case: Case) -> None:
    result = explore(case.setting)
    stop = case.broken.removeprefix("stop: ")
    if stop != case.broken:
        assert any(stop in name for name in result.stops)
    else:
        assert result.broken.startswith(case.broken)
        assert result.broken


def test_each_switch_of_the_model_is_off_alone_once() -> None:
    assert sorted(case.setting.off for case in SWITCHED_OFF) == sorted((name,) for name in SWITCHES)


def test_model_counts_no_void_state() -> None:
    """Two of three processes pause while old states are deleted and their names are used again."""
    states, broken = explore_numbers(Numbers())
    covered("state model, numbers of states", f"{states:,} states")
    assert broken == ""


@pytest.mark.parametrize("base", ["exists", ""])
def test_model_with_a_weaker_check_counts_a_void_state(base: str) -> None:
    assert explore_numbers(Numbers(base=base))[1] == "a change that is void counts"
