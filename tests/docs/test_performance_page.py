"""The page on performance shows what the kept files say."""

from benchmarks.performance_report import MARK, PAGE, peers, tables


def test_tables_are_those_of_the_kept_files():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(MARK[0])[2].partition(MARK[1])[0].strip() == tables()


def test_ratios_are_those_within_a_round():
    def runs(*rounds):
        sides = ("example", "package", "sb3")
        return [
            {"task": "a", "arm": arm, "cpu_seconds": str(s)} for of in rounds for arm, s in zip(sides, of, strict=True)
        ]

    now = runs((1.0, 2.0, 1.0), (10.0, 50.0, 1.0), (2.0, 2.0, 1.0))
    assert peers(now, runs((2.0, 1.0, 3.0))).splitlines()[-1] == "|a|2.00|2.00|1.00|2.00|0.50|"
