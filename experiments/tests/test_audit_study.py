"""What audits recommend, against what is known: the counts of the table, and what is audited."""

import json

import pytest

from experiments.studies import audit


def test_an_audit_of_an_exact_problem_is_a_record_for_each_candidate():
    setting = {"prior": "exact", "posterior": "gaussian-2d-cond1-1r-0std-vp"}
    found = audit.measure(setting | {"truths": 16, "members": 2, "seed": 0})
    assert [row["candidate"] for row in found] == ["auto", "calibrated", "ppr-tuned"]
    chosen = [order for row in found for order in row["chosen"]]
    assert sorted(chosen) == sorted(["all", *audit.ORDERS])
    assert set(found[0]["chosen"]) <= {"all"}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    auto, calibrated, _ = found
    assert auto["gaps"]["calibrated"][0] == pytest.approx(-calibrated["gaps"]["auto"][0])
    gap = auto["energy"][0] - calibrated["energy"][0]
    assert auto["gaps"]["calibrated"][0] == pytest.approx(gap)


def seen(candidate, *chosen, found=(), seed=0, feasible=1.0):
    return {
        "prior": "exact",
        "posterior": "ring-edm",
        "truths": 64,
        "members": 7,
        "seed": seed,
        "candidate": candidate,
        "chosen": list(chosen),
        "found": list(found),
        "failure": "",
        "feasible": feasible,
        "evaluations": 100.0,
    }


def test_regret_and_faults_are_counted_against_the_true_distances(monkeypatch):
    ratios = {"default": 1.1, "calibrated": 1.25, "ppr-tuned": 3.3}
    truth = [
        {"posterior": "ring-edm", "label": label, "ratio": ratio, "feasible": 1.0}
        for label, ratio in ratios.items()
    ]
    truth.append({"posterior": "ring-edm", "label": "rejection", "ratio": 0.5, "feasible": 1.0})
    monkeypatch.setattr(audit.kept, "read", lambda *_: truth)
    order = audit.ORDERS[0]
    records = [
        *(seen("auto", "all"), seen("calibrated", order), seen("ppr-tuned", found=["spread"])),
        *(seen("auto", seed=1, found=["centre"]), seen("calibrated", "all", seed=1)),
        seen("ppr-tuned", order, seed=1),
    ]
    rows = {row["family"]: row for row in audit.rows(records)}
    # no audit saw rejection, so that it is not the best
    assert rows["all (1)"] == {
        "family": "all (1)",
        "strict": "1 of 2",
        "loose": "2 of 2",
        "regret": "1.07 / 1.14",
        "faults": "1 of 2",
        "alarms": "1 of 2",
        "evaluations": pytest.approx(3 * 64 * 7 * 100 / 1e6),
    }
    assert rows["spheres (1)"]["strict"] == "1 of 2"
    assert rows["without auto, calibrated first"]["regret"] == "1.82 / 2.64"
    assert rows["without auto, always ppr-tuned"]["strict"] == "0 of 2"
    assert rows["all, always auto"]["strict"] == "2 of 2"
    # infeasible members are a fault, and what is infeasible is not the best
    records[2] |= {"found": [], "feasible": 0.9}
    truth[0]["feasible"] = 0.5
    rows = {row["family"]: row for row in audit.rows(records)}
    assert rows["all (1)"]["faults"] == "1 of 2"
    assert rows["without auto, always calibrated"]["regret"] == "1.00 / 1.00"
