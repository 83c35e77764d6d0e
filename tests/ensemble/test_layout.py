import pytest

from feasibly.ensemble import Coordinate, Layout


def test_the_default_layout_fits_any_shape():
    for shape in [(2,), (3, 4), (1, 2, 3, 4)]:
        Layout.default(shape).check(shape)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout((Coordinate("time"),)), "names 1 axes"),
        (Layout((Coordinate("x"), Coordinate("x"))), "must be different"),
        (Layout((Coordinate("x"), Coordinate("../x"))), "must be different"),
        (Layout((Coordinate("x"), Coordinate("member"))), "must be different"),
        (Layout((Coordinate("x"), Coordinate("y")), name="violation"), "none of"),
        (Layout((Coordinate("x", units="hours since start"), Coordinate("y"))), "no date"),
        (Layout((Coordinate("x", [0.0, 1.0]), Coordinate("y"))), "2 coordinates for 3 points"),
        (Layout((Coordinate("x", [0.0, 1.0, float("nan")]), Coordinate("y"))), "not finite"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(layout, words):
    with pytest.raises(ValueError, match=words):
        layout.check((3, 4))
