import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.envs.records import BoxActions, DiscreteActions, MultiDiscreteActions, ObservationSpec, action_layout
from laser_rl.envs.spaces import action_border, observation_border
from laser_rl.errors import EnvironmentRefused


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ((84, 84, 3), (3, 84, 84)),
        ((3, 84, 84), (3, 84, 84)),
        ((10, 12, 4), (4, 10, 12)),
        ((4, 10, 12), (4, 10, 12)),
        ((5, 5, 5), (5, 5, 5)),
        ((3, 7, 3), (3, 3, 7)),
        ((6, 9), (1, 6, 9)),
    ],
)
def test_pictures_become_channels_first(shape, stored):
    border = observation_border(spaces.Box(0, 255, shape, np.uint8), "Maze")
    assert border[0] == ObservationSpec(stored, "uint8", 1 / 255)
    picture = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    seen = border[1](picture)
    assert seen.shape == stored
    if shape[-1] == stored[0] and len(shape) == 3 and not (shape == stored and shape[0] < shape[-1]):
        for channel in range(stored[0]):
            np.testing.assert_array_equal(seen[channel], picture[:, :, channel])
    else:
        np.testing.assert_array_equal(seen.reshape(shape), picture)


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Box(0, 1, (10, 10, 4), bool), ObservationSpec((4, 10, 10), "uint8", 1.0)),
        (spaces.Box(0, 1, (10, 10, 4), np.uint8), ObservationSpec((4, 10, 10), "uint8", 1.0)),
        (spaces.Box(0, 15, (10, 10, 4), np.uint8), ObservationSpec((4, 10, 10), "uint8", 1 / 15)),
        (spaces.Box(-1, 1, (10, 10, 4), np.float64), ObservationSpec((4, 10, 10), "float32", 1.0)),
        (spaces.Box(-1, 1, (10, 3), np.float64), ObservationSpec((30,), "float32", 1.0)),
        (spaces.Box(0, 255, (128,), np.uint8), ObservationSpec((128,), "float32", 1 / 255)),
        (spaces.Box(-9, 9, (), np.float32), ObservationSpec((1,), "float32", 1.0)),
        (spaces.Discrete(5), ObservationSpec((5,))),
        (spaces.MultiDiscrete([2, 3]), ObservationSpec((5,))),
        (spaces.MultiBinary([2, 3]), ObservationSpec((6,))),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (2, 2), np.float32)}), ObservationSpec((6,))),
        (spaces.Tuple([spaces.Discrete(2, start=4), spaces.Discrete(3)]), ObservationSpec((5,))),
    ],
)
def test_each_kind_of_space_is_stored_as_promised(space, spec):
    border = observation_border(space, "Maze")
    assert border[0] == spec
    space.seed(1)
    sample = space.sample()
    stored = np.asarray(border[1](sample))
    assert stored.shape == spec.shape
    if not spec.is_image:
        np.testing.assert_array_equal(stored, np.asarray(spaces.flatten(space, sample)))


@pytest.mark.parametrize(
    "part",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2)]),
    ],
)
def test_what_has_no_fixed_size_is_refused_by_its_key(part):
    with pytest.raises(
        EnvironmentRefused, match=rf"got {type(part).__name__} at observation_space\['b'\]\[1\]; drop it"
    ):
        observation_border(
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(2), part])}), "Maze"
        )


@given(st.integers(1, 6), st.integers(-3, 3))
def test_discrete_actions_start_where_the_space_does(count, start):
    space = spaces.Discrete(count, start=start)
    border = action_border(space, "Maze")
    assert border[0] == DiscreteActions(count, start)
    converted = [border[1](np.int64(choice)) for choice in range(count)]
    assert all(space.contains(action) for action in converted)
    assert converted == list(range(start, start + count))


def test_several_choices_keep_shape_type_and_start():
    space = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [0, 7]], dtype=np.int32)
    border = action_border(space, "Maze")
    assert border[0] == MultiDiscreteActions((2, 3, 4, 5), (1, 1, 0, 7))
    action = border[1](np.array([1, 2, 3, 4]))
    np.testing.assert_array_equal(action, [[2, 3], [3, 11]])
    assert space.contains(action)
    assert action_layout(border[0]) == ((4,), "int64")


def test_binary_choices_are_choices_of_two():
    space = spaces.MultiBinary([2, 2])
    border = action_border(space, "Maze")
    assert border[0] == MultiDiscreteActions((2, 2, 2, 2))
    assert space.contains(border[1](np.array([1, 0, 1, 1])))


def test_real_actions_are_flat_for_the_agent_and_whole_for_the_environment():
    space = spaces.Box(np.array([[-0.1, -2]]), np.array([[0.1, 2]]), dtype=np.float64)
    border = action_border(space, "Maze")
    assert border[0] == BoxActions((-0.1, -2.0), (0.1, 2.0))
    edge = border[1](np.array([0.1, 2], np.float32))  # float32(0.1) > 0.1
    assert space.contains(edge)
    np.testing.assert_allclose(edge, [[0.1, 2]], rtol=1e-6)
    assert action_layout(border[0]) == ((2,), "float32")


def test_actions_without_bounds_pass_unchanged():
    border = action_border(spaces.Box(-np.inf, np.inf, (2,), np.float32), "Maze")
    np.testing.assert_array_equal(border[1](np.array([1e9, -3], np.float32)), np.array([1e9, -3], np.float32))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.Box(np.array([0, 0]), np.array([1, np.inf]), dtype=np.float64),
            r"low=0.0, high=inf in dimension 1; rescale",
        ),
        (spaces.Box(0, 9, (2,), np.int64), "dtype int64; use MultiDiscrete"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "Discrete, MultiDiscrete, MultiBinary or Box, got Dict"),
    ],
)
def test_actions_that_nobody_can_choose_are_refused(space, message):
    with pytest.raises(EnvironmentRefused, match=message):
        action_border(space, "Maze")


def test_bytes_inside_a_dict_or_tuple_have_the_size_of_their_neighbours():
    picture, arm = spaces.Box(0, 255, (2, 2, 3), np.uint8), spaces.Box(-1, 1, (2,), np.float32)
    space = spaces.Dict(
        arm=arm, eyes=spaces.Tuple([picture, spaces.Box(0, 5, (1,), np.uint8)]), mode=spaces.Discrete(2)
    )
    border = observation_border(space, "Maze")
    pixels = np.arange(0, 240, 20, dtype=np.uint8).reshape(2, 2, 3)
    value = {"arm": np.array([-1.0, 0.5], np.float32), "eyes": (pixels, np.array([5], np.uint8)), "mode": 1}
    stored = np.asarray(border[1](value), np.float32) * border[0].scale
    np.testing.assert_allclose(stored, [-1.0, 0.5, *pixels.ravel() / 255, 1.0, 0.0, 1.0], rtol=1e-6)


def test_bytes_alone_in_a_dict_are_scaled_each_by_its_own_bound():
    space = spaces.Dict(eye=spaces.Box(0, 255, (2,), np.uint8), bits=spaces.Box(0, 1, (2,), np.uint8))
    border = observation_border(space, "Maze")
    value = {"eye": np.array([255, 51], np.uint8), "bits": np.array([1, 0], np.uint8)}
    np.testing.assert_allclose(np.asarray(border[1](value)) * border[0].scale, [1.0, 0.2, 1.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (0,)), spaces.Box(-1, 1, (3, 0, 2)), spaces.Dict(), spaces.Tuple([])]
)
def test_an_observation_without_a_number_is_refused(space):
    with pytest.raises(EnvironmentRefused, match=r"Maze: expected an observation_space of at least one number, got"):
        observation_border(space, "Maze")


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (0,)), spaces.MultiDiscrete([])])
def test_an_action_without_a_number_is_refused(space):
    with pytest.raises(EnvironmentRefused, match=r"Maze: expected an action_space of at least one number, got"):
        action_border(space, "Maze")
