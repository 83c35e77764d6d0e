"""The studies of work and of seconds show a rival at its best."""

from experiments.records import DEFAULT
from experiments.studies import seconds, work


def timed(label, steps, ratio, taken):
    return {"case": "a", "label": label, "steps": steps, "ratio": ratio, "seconds": taken}


def test_of_a_rival_the_fastest_that_is_as_near_is_shown():
    own = timed(DEFAULT, None, 1.0, 2.0)
    rival = [timed("b", 8, 1.5, 0.5), timed("b", 16, 1.09, 1.0), timed("b", 32, 0.9, 3.0)]
    _, shown = seconds.rows([own, *rival])
    assert (shown["steps"], shown["times"]) == (16, 0.5)


def test_of_a_rival_that_is_never_as_near_the_nearest_is_shown():
    own = timed(DEFAULT, None, 1.0, 2.0)
    rival = [timed("b", 8, 3.0, 0.5), timed("b", 16, 1.2, 4.0), timed("b", 32, 2.0, 1.0)]
    _, shown = seconds.rows([own, *rival])
    assert (shown["steps"], shown["times"]) == (16, 2.0)


def test_curves_show_the_default_without_options_and_rivals_at_their_nearest():
    def row(label, budget, ratio):
        return {
            "case": "a",
            "label": label,
            "budget": budget,
            "ratio": ratio,
            "member_forward": 3,
            "member_backward": 2,
        }

    found = work.rows(
        [row(DEFAULT, 64, 0.9), row(DEFAULT, None, 1.0), row("b", 8, 1.6), row("b", 32, 1.2)]
    )
    assert [(one["label"], one["budget"]) for one in found] == [(DEFAULT, None), ("b", 32)]
    assert [one["work"] for one in found] == [7, 7]
