import io
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt

from experiments import studies
from experiments.figures import FIGURES, frontier, strips
from experiments.tables import COLUMNS, fill, means, render


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
        "in_support": 0.5,
        "joint": 0.5,
        "knn": 0.4,
        "tv": 0.1,
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
        row("control", "checkerboard", 0, knn=0.1),
        row("PPR", "checkerboard", 0, knn=0.2, forward=90, seconds=1.0, overhead=0.0),
        row("control", "checkerboard", 1, knn=0.2),
        row("PPR", "checkerboard", 1, knn=0.4, forward=130, backward=10),
        truth,
        row("PPR", "banana", 0, knn=0.9, forward=80, member_forward=90.0, feasible=0.25),
        row("control", "banana", 0, knn=0.6),
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
    control, ppr, truth = means(rows)
    assert [r["label"] for r in (control, ppr, truth)] == ["control", "PPR", "truth"]
    assert [r["settings"] for r in (control, ppr, truth)] == [3, 3, 2]
    assert [r["default"] for r in (control, ppr, truth)] == [False, True, False]
    assert ppr["knn"] == pytest.approx((0.2 + 0.4 + 0.9) / 3)
    assert control["knn"] == pytest.approx((0.1 + 0.2 + 0.6) / 3)
    assert truth["knn"] == pytest.approx((0.5 + 0.4) / 2)
    assert ppr["feasible"] == pytest.approx((1 + 1 + 0.25) / 3)
    assert ppr["seconds"] == pytest.approx((1 + 2 + 2) / 3)
    assert ppr["overhead"] == pytest.approx((0 + 0.25 + 0.25) / 3)
    assert ppr["member_forward"] == pytest.approx((60 + 60 + 90) / 3)


def test_call_counts_are_the_largest(rows):
    _, ppr, truth = means(rows)
    assert (ppr["forward"], ppr["backward"]) == (130, 40)
    assert "forward" not in truth


def test_what_is_no_measure_is_not_averaged(rows):
    for record in means(rows):
        assert record["study"] == "tiny"
        assert not {"prior", "constraint", "sampler", "versions"} & record.keys()


def test_the_worst_settings_are_kept(rows):
    control, ppr, truth = means(rows)
    assert (ppr["feasible_worst"], ppr["knn_worst"]) == (0.25, 0.2)
    assert (control["feasible_worst"], control["knn_worst"]) == (1.0, 0.1)
    assert truth["knn_worst"] == 0.4


@pytest.mark.parametrize(
    "change",
    [{}, {"prior": "banana", "pool": 1}, {"prior": "banana", "sampler": "PPR(steps=1)"}],
    ids=["twice", "another pool", "another sampler"],
)
def test_records_that_do_not_belong_together_are_refused(change):
    first = row("PPR", "checkerboard", 0)
    with pytest.raises(ValueError, match=r"'PPR'.*stale"):
        means([first, first | change])


def test_settings_with_another_seed_are_not_averaged():
    first = row("PPR", "checkerboard", 0)
    with pytest.raises(ValueError, match="stale"):
        means([first, row("PPR", "checkerboard", 1, seed=1)])


def test_a_run_that_broke_down_counts_in_scores_and_not_in_costs():
    broken = {k: v for k, v in row("PPR", "banana", 0).items() if k not in ("forward", "seconds")}
    broken |= {"joint": 0.0, "error": "All members became non-finite."}
    whole = row("PPR", "banana", 1, joint=1.0, forward=90, seconds=3.0)
    for rows in ([broken, whole], [whole, broken]):
        (record,) = means(rows)
        assert record["joint"] == 0.5
        assert (record["forward"], record["seconds"]) == (90, 3.0)
        assert "error" not in record


def test_the_mean_of_one_setting_is_the_setting(rows):
    (record,) = means(rows[:1])
    shared = COLUMNS.keys() & rows[0].keys()
    assert {k: record[k] for k in shared} == {k: rows[0][k] for k in shared}
    assert record["settings"] == 1
    for key in ("feasible", "knn"):
        assert record[f"{key}_worst"] == rows[0][key]


def test_a_table_is_markdown_with_a_line_for_every_label(rows):
    table = parse(render(means(rows)))
    assert [cells[0][2] for cells in table] == ["method", "control", "PPR", "truth"]
    values = {key for record in means(rows) for key in record}
    columns = [key for key in COLUMNS if key in values]
    assert {"feasible", "knn", "tv", "forward"} <= set(columns)
    assert not {"state_knn", "rmse", "max_norm"} & set(columns)
    assert all(len(cells) == len(columns) for cells in table)
    assert [{head for head, _, _ in cells} for cells in table] == [{True}] + 3 * [{False}]
    assert len(render(means(rows)).splitlines()) == 5


def test_a_column_that_no_row_has_is_left_out(rows):
    heads = [text for _, _, text in parse(render(means(rows)))[0]]
    assert "state: k-NN" not in heads
    heads = [
        text for _, _, text in parse(render(means([r | {"state_knn": 0.3} for r in rows])))[0]
    ]
    assert "state: k-NN" in heads


def test_a_latex_table_has_the_cells_of_the_markdown_one(rows):
    table = parse(render(means(rows)))
    lines = render(means(rows), "latex").splitlines()
    assert lines[0] == r"\begin{tabular}{l" + "r" * (len(table[0]) - 1) + "}"
    body = [line for line in lines if line.endswith(r"\\")]
    assert len(body) == len(table)
    for line, cells in zip(body, table, strict=True):
        plain = line.removesuffix(r" \\").replace(r"\%", "%").replace(r"\textbf{PPR}", "PPR")
        assert plain.split(" & ") == [text for _, _, text in cells]


def test_a_latex_label_is_escaped():
    (first,) = means([row("x_t^0, 5 % & $", "banana", 0)])
    assert r"x\_t\^{}0, 5 \% \& \$" in render([first], "latex")


def test_the_default_alone_is_bold(rows):
    table = parse(render(means(rows)))
    assert [text for cells in table for _, bold, text in cells if bold] == ["PPR"]


def test_cells_are_shares_in_percent_and_empty_where_nothing_was_measured(rows):
    table = parse(render(means(rows)))
    values = {key for record in means(rows) for key in record}
    columns = [key for key in COLUMNS if key in values]
    ppr, truth = (
        {key: cell[2] for key, cell in zip(columns, cells, strict=True)} for cells in table[2:]
    )
    expected = {
        "label": "PPR",
        "feasible": "75.0",
        "feasible_worst": "25.0",
        "in_support": "50.0",
        "joint": "50.0",
        "knn": "0.500",
        "knn_worst": "0.200",
        "tv": "0.100",
        "forward": "130",
        "backward": "40",
        "member_forward": "70",
        "seconds": "1.7",
        "overhead": "17",
    }
    assert ppr.items() >= expected.items()
    assert truth["knn"] == "0.450"
    assert truth["forward"] == truth["seconds"] == truth["overhead"] == ""


def test_labels_of_studies_do_not_break_a_table():
    for study in studies.find().values():
        rows = [row(label, "banana", 0) | {"default": False} for label in study.samplers]
        table = parse(render(means(rows)))
        assert [cells[0][2] for cells in table[1:]] == list(study.samplers)


PAGE = """# Title

<!-- table: tiny data2d -->
old
<!-- end -->

Text | with a bar.

<!-- table: tiny data2d; truth; PPR -->
<!-- end -->
The end.
"""


def test_a_page_is_filled_with_the_tables_that_it_names(rows):
    asked = []

    def read(study, problem):
        asked.append((study, problem))
        return rows

    page = fill(PAGE, read)
    assert asked == [("tiny", "data2d")] * 2
    parts = page.split("<!-- ")
    tables = [part.partition("-->\n")[2] for part in parts if part.startswith("table")]
    assert tables[0].rstrip("\n") == render(means(rows))
    chosen = parse(tables[1])
    assert [cells[0][2] for cells in chosen[1:]] == ["truth", "PPR"]
    assert page.startswith("# Title\n\n")
    assert "<!-- end -->\n\nText | with a bar.\n\n" in page
    assert page.endswith("<!-- end -->\nThe end.\n")


def test_a_page_is_filled_with_what_is_made():
    page = "a\n<!-- made: two-words -->\nold\n<!-- end -->\nb"
    filled = fill(page, lambda *_: [], {"two-words": lambda: "new"})
    assert filled == "a\n<!-- made: two-words -->\nnew\n<!-- end -->\nb"


def test_filling_a_page_again_changes_nothing(rows):
    once = fill(PAGE, lambda study, problem: rows)
    assert fill(once, lambda study, problem: rows) == once
    assert fill("no tables", lambda study, problem: rows) == "no tables"


def png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=30)
    return buffer.getvalue().startswith(b"\x89PNG")


def test_figures_are_those_of_studies():
    assert FIGURES.keys() <= studies.find().keys()


def test_the_frontier_shows_every_sampler_at_its_cost(rows):
    figure = frontier(rows)
    left, right = figure.axes
    for ax, key in ((left, "joint"), (right, "knn")):
        points = {c.get_label(): c.get_offsets()[0].tolist() for c in ax.collections}
        expected = {r["label"]: r for r in means(rows) if r["label"] != "truth"}
        assert points.keys() == expected.keys()
        for label, record in expected.items():
            calls = record["member_forward"] + record["member_backward"]
            assert points[label] == pytest.approx([calls, record[key]])
    assert png(figure)


def test_strips_show_every_setting_and_the_mean(rows):
    rows = [r | {"violation_median": 1e-7, "violation_90": 1e-5} for r in rows]
    figure = strips(rows)
    left, right = figure.axes
    assert [t.get_text() for t in left.get_yticklabels()] == ["control", "PPR", "truth"]
    points = [c.get_offsets()[:, 0].tolist() for c in right.collections]
    assert points == [[0.1, 0.2, 0.6], [0.2, 0.4, 0.9], [0.5, 0.4]]
    lines = [line.get_xdata()[0] for line in right.lines]
    assert lines[:3] == pytest.approx([0.3, 0.5, 0.45])
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
    for key in ("prior", "constraint", "pool", "knn", "tv"):
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
    # one reference has 1.5, the other (7^0.5 + 14^0.5) / 2
    assert record["rmse_error"] == pytest.approx(((7**0.5 + 14**0.5) / 2 - 1.5) / 2)
    assert record["max_norm"] == 2
    assert record["residual_feasible"] == 0.2
    assert record["settings"] == 2
    assert not {"knn_std", "knn_worst", "reference", "mse"} & record.keys()


def test_kinds_of_observation_weigh_the_same_whatever_their_number_of_cases():
    rows = [
        ensemble("PPR", "sine-3", 0, [1.0, 1.0]),
        ensemble("PPR", "sine-1", 0, [9.0, 9.0]),
        ensemble("PPR", "sine-1", 1, [9.0, 9.0]),
    ]
    record = means(rows)[0]
    assert record["rmse"] == pytest.approx(2)
    assert "rmse_error" not in record  # kinds differ by more than chance


def test_a_run_that_broke_down_has_shares_and_no_scores():
    broken = ensemble("PPR", "sine-3", 1, [0.0], feasible=0.0, error="diverged")
    for key in ("mse", "mean_se", "variance", "crps", "max_norm"):
        del broken[key]
    (record,) = means([ensemble("PPR", "sine-3", 0, [4.0, 4.0]), broken])
    assert record["feasible"] == 0.5
    assert record["rmse"] == 2
    (alone,) = means([broken])
    assert "rmse" not in alone


def test_a_mark_may_ask_for_one_kind_of_observation():
    rows = [ensemble("PPR", "sine-3", 0, [1.0]), ensemble("PPR", "sine-1", 0, [9.0])]

    def read(study, problem):
        assert (study, problem) == ("baselines", "ks")
        return rows

    page = "<!-- table: baselines ks{} -->\n<!-- end -->"
    assert "| 1.000 |" in fill(page.format("/sine-3"), read)
    assert "| 2.000 |" in fill(page.format(""), read)
    assert "| 3.000 |" in fill(page.format("/sine-1; PPR"), read)


def test_the_error_of_the_rmse_is_the_jackknife_s():
    values = [1.0, 4.0, 16.0]
    rows = [ensemble("PPR", "sine-3", k, [v]) for k, v in enumerate(values)]
    without = [(20 / 2) ** 0.5, (17 / 2) ** 0.5, (5 / 2) ** 0.5]
    mean = sum(without) / 3
    expected = (2 / 3 * sum((v - mean) ** 2 for v in without)) ** 0.5
    assert means(rows)[0]["rmse_error"] == pytest.approx(expected)


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


def test_what_is_not_there_is_named():
    with pytest.raises(ValueError, match="no records"):
        means([])
    rows = [ensemble("PPR", "sine-3", 0, [1.0])]
    with pytest.raises(ValueError, match=r"\['DPS'\] of baselines on ks, which has \['PPR'\]"):
        fill("<!-- table: baselines ks; DPS -->\n<!-- end -->", lambda *_: rows)
