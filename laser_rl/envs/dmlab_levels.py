"""The thirty levels of DMLab-30, with the mean returns of a random player and of people.

Two of them have a version to train on and one that is held out for tests; the published scores are of the latter. Agents in training are
compared with them all the same, as in the literature.
"""

from dataclasses import dataclass

NEEDS_PICTURES = frozenset({"psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition"})


@dataclass(frozen=True)
class Level:
    """One level by the name of its training version.

    >>> LEVELS[0].name, LEVELS[0].test_name
    ('rooms_collect_good_objects_train', 'rooms_collect_good_objects_test')
    """

    name: str
    random: float
    human: float

    @property
    def test_name(self) -> str:
        """The version that scores are reported for; mostly the same."""
        stem = self.name.removesuffix("_train")
        return self.name if stem == self.name else f"{stem}_test"


# fmt: off
LEVELS = (
    Level("rooms_collect_good_objects_train", 0.073, 10.0),
    Level("rooms_exploit_deferred_effects_train", 8.501, 85.65),
    Level("rooms_select_nonmatching_object", 0.312, 65.9),
    Level("rooms_watermaze", 4.065, 54.0),
    Level("rooms_keys_doors_puzzle", 4.135, 53.8),
    Level("language_select_described_object", -0.07, 389.5),
    Level("language_select_located_object", 1.929, 280.7),
    Level("language_execute_random_task", -5.913, 254.05),
    Level("language_answer_quantitative_question", -0.33, 184.5),
    Level("lasertag_one_opponent_small", -0.224, 12.65),
    Level("lasertag_three_opponents_small", -0.214, 18.55),
    Level("lasertag_one_opponent_large", -0.083, 18.6),
    Level("lasertag_three_opponents_large", -0.102, 31.5),
    Level("natlab_fixed_large_map", 2.173, 36.9),
    Level("natlab_varying_map_regrowth", 2.989, 24.45),
    Level("natlab_varying_map_randomized", 7.346, 42.35),
    Level("skymaze_irreversible_path_hard", 0.1, 100.0),
    Level("skymaze_irreversible_path_varied", 14.4, 100.0),
    Level("psychlab_arbitrary_visuomotor_mapping", 0.163, 58.75),
    Level("psychlab_continuous_recognition", 0.224, 58.3),
    Level("psychlab_sequential_comparison", 0.129, 39.5),
    Level("psychlab_visual_search", 0.085, 78.5),
    Level("explore_object_locations_small", 3.575, 74.45),
    Level("explore_object_locations_large", 4.673, 65.65),
    Level("explore_obstructed_goals_small", 6.76, 206.0),
    Level("explore_obstructed_goals_large", 2.61, 119.5),
    Level("explore_goal_locations_small", 7.66, 267.5),
    Level("explore_goal_locations_large", 3.14, 194.5),
    Level("explore_object_rewards_few", 2.073, 77.7),
    Level("explore_object_rewards_many", 2.438, 106.7),
)
# fmt: on
_BY_NAME = {name: level for level in LEVELS for name in (level.name, level.test_name)}


def level_of(name: str) -> Level | None:
    """The level of that name, of either version; None for any other.

    >>> level_of("rooms_collect_good_objects_test").human, level_of("rooms_watermaze").human, level_of("lt_chasm")
    (10.0, 54.0, None)
    """
    return _BY_NAME.get(name)
