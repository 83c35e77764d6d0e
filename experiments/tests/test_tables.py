import io
import math
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt

from experiments import records
from experiments.figures import strips
from experiments.pages import fill
from experiments.tables import COLUMNS, means, render


def row(label, prior, constraint, **changes):
    values = {
        "study": "tiny",
        "label": label,
        "default": label == "PPR",
        "problem": "data2d",
        "prior": prior,
        "constraint": constraint,
        "members": 32,
        "seed": 0,
        "pool": 2048,
        "feasible": 1.0,
        "on_manifold": 0.5,
        "joint": 0.5,
        "knn": 0.4,
        "weight_error": 0.1,
        "forward": 100,
        "backward": 40,
        "member_forward": 60.0,
        "member_backward": 20.0,
        "seconds": 2.0,
        "overhead": 0.25,
        "sampler": "PPR()",
        "versions": {"torch": "2"},
    }
    return values | changes


@pytest.fixture
def rows():
    """Two samplers on three settings, and the truth on two."""
    calls = {"forward", "backward", "member_forward", "member_backward", "seconds", "overhead"}
    truth = {k: v for k, v in row("truth", "banana", 0, knn=0.5).items() if k not in calls}
    return [
        row("post-hoc", "checkerboard", 0, knn=0.1),
        row("PPR", "checkerboard", 0, knn=0.2, forward=90, seconds=1.0, overhead=0.0),
        row("post-hoc", "checkerboard", 1, knn=0.2),
        row("PPR", "checkerboard", 1, knn=0.4, forward=130, backward=10),
        truth,
        row("PPR", "banana", 0, knn=0.9, forward=80, member_forward=90.0, feasible=0.25),
        row("post-hoc", "banana", 0, knn=0.6),
        truth | {"constraint": 1, "knn": 0.4},
    ]


def parse(text):
    """The cells of a Markdown table, as (row, is a head, is bold, text)."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    assert [t.type for t in tokens if t.level == 0] == ["table_open", "table_close"]
    table = []
    for before, token in pairwise(tokens):
        if before.type == "tr_open":
            table.append([])
        if token.type == "inline":
            bold = any(child.type == "strong_open" for child in token.children)
            content = "".join(child.content for child in token.children)
            table[-1].append((before.type == "th_open", bold, content))
    return table


def test_means_are_those_of_each_label_over_its_settings(rows):
    post_hoc, ppr, truth = means(rows)
    assert [r["label"] for r in (post_hoc, ppr, truth)] == ["post-hoc", "PPR", "truth"]
    assert [r["settings"] for r in (post_hoc, ppr, truth)] == [3, 3, 2]
    assert [r["default"] for r in (post_hoc, ppr, truth)] == [False, True, False]
    assert ppr["knn"] == pytest.approx((0.2 + 0.4 + 0.9) / 3)
    assert post_hoc["knn"] == pytest.approx((0.1 + 0.2 + 0.6) / 3)
    assert truth["knn"] == pytest.approx((0.5 + 0.4) / 2)
    assert ppr["feasible"] == pytest.approx((1 + 1 + 0.25) / 3)
    assert ppr["seconds"] == pytest.approx((1 + 2 + 2) / 3)
    assert ppr["overhead"] == pytest.approx((0 + 0.25 + 0.25) / 3)
    assert ppr["member_forward"] == pytest.approx((60 + 60 + 90) / 3)


@pytest.mark.parametrize(
    "change",
    [{}, {"prior": "banana", "pool": 1}, {"prior": "banana", "sampler": "PPR(steps=1)"}],
    ids=["twice", "another pool", "another sampler"],
)
def test_records_that_do_not_belong_together_are_refused(change):
    first = row("PPR", "checkerboard", 0)
    with pytest.raises(ValueError, match=r"'PPR'.*stale"):
        means([first, first | change])


def test_a_run_that_broke_down_counts_in_scores_and_not_in_costs():
    broken = {k: v for k, v in row("PPR", "banana", 0).items() if k not in ("forward", "seconds")}
    broken |= {"joint": 0.0, "error": "All members became non-finite."}
    whole = row("PPR", "banana", 1, joint=1.0, forward=90, seconds=3.0)
    for rows in ([broken, whole], [whole, broken]):
        (record,) = means(rows)
        assert record["joint"] == 0.5
        assert (record["forward"], record["seconds"]) == (90, 3.0)
        assert "error" not in record


def test_cells_are_formatted_by_their_columns_and_empty_where_nothing_was_measured(rows):
    table = parse(render(means(rows)))
    heads = [text for _, _, text in table[0]]
    ppr, truth = (
        {head: cell[2] for head, cell in zip(heads, cells, strict=True)} for cells in table[2:]
    )
    expected = {
        "method": "PPR",
        "feasible": "75.0%",
        "both": "50.0%",
        "k-NN": "0.500",
        "evaluations": "70 + 20",
        "seconds": "1.7",
        "overhead": "17%",
    }
    assert ppr.items() >= expected.items()
    assert truth["k-NN"] == "0.450"
    assert truth["evaluations"] == truth["seconds"] == truth["overhead"] == ""


PAGE = """# Title

<!-- table: ablation data2d -->
old
<!-- end -->

Text | with a bar.

<!-- table: ablation data2d; truth; PPR -->
<!-- end -->
The end.
"""


@pytest.fixture
def reads(monkeypatch, rows):
    """Records that are those of the fixture, and what was asked for."""
    asked = []

    def read(study, problem):
        asked.append((study, problem))
        return rows

    monkeypatch.setattr(records, "read", read)
    return asked


def test_a_page_is_filled_with_the_tables_that_it_names(rows, reads):
    page = fill(PAGE)
    assert reads == [("ablation", "data2d")] * 2
    parts = page.split("<!-- ")
    tables = [part.partition("-->\n")[2] for part in parts if part.startswith("table")]
    assert tables[0].rstrip("\n") == render(means(rows), COLUMNS["data2d"])
    chosen = parse(tables[1])
    assert [cells[0][2] for cells in chosen[1:]] == ["truth", "PPR"]
    assert page.startswith("# Title\n\n")
    assert "<!-- end -->\n\nText | with a bar.\n\n" in page
    assert page.endswith("<!-- end -->\nThe end.\n")
    assert fill(page) == page
    assert fill("no tables") == "no tables"


def png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=30)
    return buffer.getvalue().startswith(b"\x89PNG")


def test_strips_show_every_setting_and_the_mean_of_the_best_label_first(rows):
    found = {"violation_median": 1e-7, "violation_90": 1e-5}
    rows = [r | found | {"joint": 0.9 if r["label"] == "PPR" else 0.5} for r in rows]
    figure = strips(rows)
    left, right = figure.axes
    assert [t.get_text() for t in left.get_yticklabels()] == ["PPR", "post-hoc", "truth"]
    points = [c.get_offsets()[:, 0].tolist() for c in right.collections]
    assert points == [[0.2, 0.4, 0.9], [0.1, 0.2, 0.6], [0.5, 0.4]]
    lines = [line.get_xdata()[0] for line in right.lines]
    assert lines[:3] == pytest.approx([0.5, 0.3, 0.45])
    assert png(figure)


def ensemble(label, observation, reference, mse, **changes):
    """A record of KS with two frames; the ensemble mean has half of the members' square error."""
    values = row(label, None, None) | {
        "problem": "ks",
        "observation": observation,
        "reference": reference,
        "members": 8,
        "mse": mse,
        "mean_se": [v / 2 for v in mse],
        "variance": [v / 4 for v in mse],
        "crps": [v / 10 for v in mse],
        "max_norm": 1.5,
        "residual_feasible": None,
    }
    for key in ("prior", "constraint", "pool", "knn", "weight_error"):
        del values[key]
    return values | changes


def test_ensembles_are_averaged_over_cases_then_rooted_then_averaged_over_time():
    rows = [
        ensemble("PPR", "sine-3", 0, [1.0, 4.0]),
        ensemble("PPR", "sine-3", 1, [7.0, 14.0], max_norm=2.5, residual_feasible=0.2),
    ]
    (record,) = means(rows)
    assert record["rmse"] == pytest.approx((4**0.5 + 9**0.5) / 2)
    assert record["skill"] == pytest.approx((2**0.5 + 4.5**0.5) / 2)
    assert record["spread"] == pytest.approx((1 + 2.25**0.5) / 2)
    assert record["ratio"] == pytest.approx((9 / 8) ** 0.5 * 0.5**0.5)
    assert record["crps"] == pytest.approx(0.65)
    assert record["max_norm"] == 2
    assert record["residual_feasible"] == 0.2
    assert record["settings"] == 2
    assert not {"reference", "mse"} & record.keys()


def test_a_run_that_broke_down_has_shares_and_no_scores():
    broken = ensemble("PPR", "sine-3", 1, [0.0], feasible=0.0, error="diverged")
    for key in ("mse", "mean_se", "variance", "crps", "max_norm"):
        del broken[key]
    (record,) = means([ensemble("PPR", "sine-3", 0, [4.0, 4.0]), broken])
    assert record["feasible"] == 0.5
    assert record["rmse"] == 2
    (alone,) = means([broken])
    assert "rmse" not in alone


def test_scores_relative_to_the_default_are_on_the_same_references():
    rows = [
        ensemble("PPR", "sine-3", 0, [1.0], default=True),
        ensemble("PPR", "sine-3", 1, [100.0], default=True),
        ensemble("other", "sine-3", 0, [4.0], default=False),
        ensemble("elsewhere", "sine-3", 2, [4.0], default=False),
    ]
    ppr, other, elsewhere = means(rows)
    assert ppr["rmse_ratio"] == ppr["crps_ratio"] == 1
    assert other["rmse_ratio"] == pytest.approx(2)
    assert other["crps_ratio"] == pytest.approx(rows[2]["crps"][0] / rows[0]["crps"][0])
    assert "rmse_ratio" not in elsewhere
    assert "seconds" not in ppr


def test_the_error_of_a_ratio_is_over_references_that_both_have():
    """A method that is twice as far on all references is so without an error."""
    values = [1.0, 4.0, 16.0]
    rows = [ensemble("PPR", "sine-3", k, [v]) for k, v in enumerate(values)]
    rows += [ensemble("twice", "sine-3", k, [4 * v]) for k, v in enumerate(values)]
    rows += [ensemble("some", "sine-3", k, [v]) for k, v in ((0, 4.0), (1, 4.0))]
    rows += [ensemble("one", "sine-3", 2, [16.0])]
    ppr, twice, some, one = (row["rmse_to"] for row in means(rows))
    assert (ppr, twice, one) == ("1.00", "2.00 ± 0.00", "1.00")
    # nor is there one over kinds of observation, of which a mean is taken
    mixed = [ensemble("PPR", kind, 0, [v]) for kind, v in (("sine-3", 1.0), ("sine-1", 4.0))]
    mixed += [ensemble("other", kind, 0, [v]) for kind, v in (("sine-3", 4.0), ("sine-1", 4.0))]
    assert [row["rmse_to"] for row in means(mixed)] == ["1.00", "1.33"]
    # without one of two references the ratio is 1 or 2
    assert some == f"{math.sqrt(8 / 5):.2f} ± 0.50"


def test_what_is_not_there_is_named(monkeypatch):
    with pytest.raises(ValueError, match="no records"):
        means([])
    rows = [ensemble("PPR", "sine-3", 0, [1.0])]
    monkeypatch.setattr(records, "read", lambda study, problem: rows)
    with pytest.raises(ValueError, match=r"\['DPS'\] of baselines on ks, which has \['PPR'\]"):
        fill("<!-- table: baselines ks; DPS -->\n<!-- end -->")
    with pytest.raises(ValueError, match="linear on ks, which is no comparison"):
        fill("<!-- table: linear ks -->\n<!-- end -->")
