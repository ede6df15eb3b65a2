"""Networks from settings by name."""

from laser_rl.config import NetworkConfig
from laser_rl.networks import build


def build_network(spec, *, torso="auto", stack=1, popart=False, pixel_control_cell=0, **settings):
    own = None if isinstance(torso, str) else torso
    config = NetworkConfig(torso=torso if own is None else "auto", **settings)
    return build.build_network(
        spec, config, torso=own, stack=stack, popart=popart, pixel_control_cell=pixel_control_cell
    )
