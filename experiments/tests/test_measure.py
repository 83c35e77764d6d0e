import json
from dataclasses import replace

import pytest
from experiments.measure import run

from experiments import records
from experiments.studies import Measurement


class Counted:
    """Measures a setting in three records, and counts the calls."""

    def __init__(self, interrupted=()):
        self.calls = []
        self.interrupted = interrupted

    def __call__(self, setting):
        self.calls.append(setting)
        if setting in self.interrupted:
            raise KeyboardInterrupt
        return [{"level": i, "value": i * setting["sigma"]} for i in range(3)]


SETTINGS = [{"sigma": 0.1, "pair": (1, 2)}, {"sigma": 0.3, "pair": (1, 2)}]


def tiny(measure, settings=SETTINGS):
    return Measurement(
        name="tiny",
        question="Does it run?",
        problem="ks",
        settings=settings,
        measure=measure,
        rows=list,
        columns={},
    )


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)


def path():
    return records.path_of("tiny", "ks")


def test_every_setting_is_measured_and_its_records_say_what_they_are(capsys):
    measure = Counted()
    run(tiny(measure))
    assert measure.calls == SETTINGS
    rows = records.read("tiny", "ks")
    assert [(row["sigma"], row["level"]) for row in rows] == [
        (sigma, level) for sigma in (0.1, 0.3) for level in range(3)
    ]
    for row in rows:
        assert (row["study"], row["problem"], row["pair"]) == ("tiny", "ks", [1, 2])
        assert row["value"] == row["level"] * row["sigma"]
        assert {"feasibly", "commit", "torch", "python", "machine"} == row["versions"].keys()
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_what_has_its_records_is_not_measured_again():
    run(tiny(Counted()))
    before = path().read_bytes()
    again = Counted()
    run(tiny(again))
    assert again.calls == []
    assert path().read_bytes() == before


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_setting_alone_is_measured_again(missing):
    run(tiny(Counted()))
    lines = path().read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["sigma"] != SETTINGS[missing]["sigma"]]
    gone = [json.loads(line) for line in lines if line not in kept]
    path().write_text("".join(kept))
    again = Counted()
    run(tiny(again))
    assert again.calls == [SETTINGS[missing]]
    assert path().read_text().startswith("".join(kept))
    assert records.read("tiny", "ks")[3:] == gone


def test_another_setting_is_not_taken_for_one_that_is_there():
    run(tiny(Counted(), SETTINGS[:1]))
    more = Counted()
    other = [{"sigma": 0.1, "pair": (1, 3)}, {"sigma": 0.1, "pair": (1, 2), "members": 4}]
    run(tiny(more, other))
    assert more.calls == other


def test_an_interrupted_setting_leaves_no_records_and_those_before_it_stay():
    measurement = tiny(Counted(interrupted=[SETTINGS[1]]))
    with pytest.raises(KeyboardInterrupt):
        run(measurement)
    assert [row["sigma"] for row in records.read("tiny", "ks")] == [0.1] * 3
    again = Counted()
    run(replace(measurement, measure=again))
    assert again.calls == [SETTINGS[1]]
    assert [row["sigma"] for row in records.read("tiny", "ks")] == [0.1] * 3 + [0.3] * 3


def test_a_record_that_json_cannot_hold_leaves_nothing_of_its_setting():
    def measure(setting):
        return [{"level": 0}, {"level": object()}]

    with pytest.raises(TypeError):
        run(tiny(measure))
    assert not path().exists()


def test_the_records_of_a_setting_are_appended_in_one_write(monkeypatch, tmp_path):
    written = []

    class File:
        parent = tmp_path

        def exists(self):
            return False

        def open(self, mode):
            assert mode == "a"
            return self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def write(self, text):
            written.append(text)

    monkeypatch.setattr(records, "path_of", lambda study, problem: File())
    run(tiny(Counted()))
    assert [text.count("\n") for text in written] == [3, 3]


def test_only_the_labels_that_are_asked_for_are_measured():
    counted = Counted()
    settings = [{"label": name, "sigma": 0.1} for name in ("one", "two")]
    run(tiny(counted, settings), ["two"])
    assert counted.calls == settings[1:]
    with pytest.raises(ValueError, match=r"no labels \['three'\]; choose from \['one', 'two'\]"):
        run(tiny(counted, settings), ["three"])
