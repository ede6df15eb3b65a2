"""Errors that a user can do something about; the command line prints the message, never a traceback, and exits with `exit_status`."""

import difflib
import errno
import importlib.util
import re
from collections.abc import Iterable

_SHORT = {"k": 1_000, "M": 1_000_000, "m": 1_000_000, "G": 1_000_000_000}
_MOST_REPEATED = 200  # letters of a value that is refused
# Names that stable-baselines3, CleanRL and RLlib have for a setting of ours, and what its value is here; without a setting of ours: why.
_THEIRS = (
    ("gamma", "loss.discount", "the same number"),
    ("lr", "optimiser.learning_rate", "a number; optimiser.schedule linear lowers it to 0"),
    ("anneal_lr lr_schedule", "optimiser.schedule", "constant, or linear to 0"),
    ("eps adam_epsilon rms_prop_eps", "optimiser.epsilon", "the same number"),
    ("max_grad_norm grad_clip", "optimiser.clip_gradient_norm", "the largest norm of the gradient; none: not clipped"),
    ("total_timesteps total_steps", "run.steps", "environment steps of all slots together"),
    ("n_envs num_envs num_workers num_env_runners num_envs_per_env_runner", "environment.slots", "environments in all"),
    ("env_id", "environment.id", "a Gymnasium id or module:callable"),
    ("env_kwargs env_config", "environment.options", "keyword arguments of the environment"),
    ("n_stack framestack", "environment.frame_stack", "frames that the network sees at once; pictures only"),
    ("n_steps num_steps rollout_fragment_length", "loss.unroll_steps", "steps of one environment in an unroll"),
    ("batch_size minibatch_size train_batch_size", "loss.batch_unrolls", "unrolls of unroll_steps steps each, not steps"),
    ("train_freq train_frequency", "loss.new_unrolls_per_update", "new unrolls between two updates"),
    ("ent_coef entropy_coeff", "loss.entropy_cost", "the weight of the entropy, of online rows only"),
    ("vf_coef vf_loss_coeff", "loss.baseline_cost", "the weight of the value's loss"),
    ("target_kl kl_target", "loss.trust_bound", "the KL beyond which a replayed step is rejected; it ends no epoch"),
    ("vtrace_clip_rho_threshold", "loss.clip_rho", "the same number"),
    ("norm_obs normalize_observations", "network.normalise_observation", "true: running mean and deviation, kept in the network"),
    ("norm_reward norm_adv normalize_advantage", "loss.popart", "true: values and advantages in units of the returns"),
    ("clip_rewards clip_reward", "loss.reward_transform", "clip: to the range from -1 to 1"),
    ("buffer_size capacity", "replay.capacity_steps", "environment steps, of all members together"),
    ("learning_starts", "replay.warmup_steps", "environment steps before the first update"),
    ("prioritized_replay_alpha", "replay.priority_exponent", "the same number, with replay.sampling prioritised"),
    ("prioritized_replay_beta", "replay.importance_exponent", "the same number, with replay.sampling prioritised"),
    ("policy", "network.torso", "what MlpPolicy and CnnPolicy choose; auto: what fits the observation"),
    ("policy_kwargs net_arch fcnet_hiddens", "network.hidden", "sizes of the layers; a module of your own: net="),
    ("use_lstm", "network.memory", "none, lstm, gru or preco"),
    ("lstm_hidden_size lstm_cell_size", "network.memory_size", "units of the memory"),
    ("cuda", "run.device", "auto, cpu, cuda or cuda:1"),
    ("eval_freq evaluation_interval", "run.evaluate_every_steps", "environment steps of all slots together"),
    ("n_eval_episodes evaluation_duration", "run.evaluate_episodes", "episodes of one evaluation"),
    ("save_freq checkpoint_frequency", "run.checkpoint_every_steps", "environment steps of all slots together"),
    ("capture_video", "run.video_every_steps", "environment steps between two videos"),
    ("gae_lambda lambda lambda_", "", "V-trace computes the targets; loss.clip_c shortens its traces"),
    ("clip_range clip_coef clip_param", "", "the trust region, loss.trust_bound, rejects steps; no ratio is clipped as in PPO"),
    ("clip_range_vf clip_vloss vf_clip_param", "", "the value's loss is not clipped; loss.popart tames large returns"),
    ("n_epochs update_epochs num_epochs num_minibatches gradient_steps", "", "the replay repeats steps: replay.fraction"),
    ("tau target_update target_update_interval target_network_frequency", "", "the values have no target network"),
    ("exploration_fraction exploration_final_eps action_noise use_sde", "", "the policy itself is random: loss.entropy_cost"),
    ("tensorboard_log exp_name storage_path", "", "all files go to the run directory, run_dir= or --out; learn takes tensorboard_log="),
)  # fmt: skip
THEIRS = {name: (ours, note) for names, ours, note in _THEIRS for name in names.split()}


class UserError(Exception):
    """The message says what was expected, what came and what to do."""

    exit_status = 2


class ConfigError(UserError):
    """A setting, a file or a combination of them that cannot work."""


class EnvironmentRefused(UserError):
    """An environment does not keep Gymnasium's contract: names what was expected and what came."""


class MissingExtra(UserError):
    """A part that is not in the base install."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}: pip install 'laser-rl[{extra}]'")


def require_modules(what: str, extra: str, *modules: str) -> None:
    """Raise `MissingExtra` before any work is done, if one of its modules is not installed."""
    if any(importlib.util.find_spec(name) is None for name in modules):
        raise MissingExtra(what, extra)


class EnvironmentFailed(UserError):
    """An environment kept failing; the message ends with the original traceback."""

    exit_status = 4


class EnvironmentEnded(EnvironmentFailed):
    """An environment asked the whole program to end: sys.exit, os._exit, or a KeyboardInterrupt of its own."""


class DamagedRun(UserError):
    """Nothing in a run directory verifies."""

    exit_status = 3


def is_full(error: BaseException) -> bool:
    """Whether something could not be written for lack of space: it may work later."""
    # The disk, the user's share of it, or one file is full.
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def suggestion(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The known name that is nearest to a wrong one; if none is near, `otherwise`, or all of them."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise or f"there are {', '.join(known)}"


def called_here(name: str) -> str:
    """What the name of a setting of stable-baselines3, CleanRL or RLlib is called here, and what its value means.

    >>> called_here("gamma")
    "gamma is 'loss.discount' here: the same number"
    """
    ours, note = THEIRS[name]
    return f"{name} is {ours!r} here: {note}" if ours else f"{name} has no counterpart here: {note}"


def written_out(word: str) -> str:
    """200k and 1.5M as whole numbers; every other word as it is.

    >>> written_out("1.5M"), written_out("10"), written_out("best")
    ('1500000', '10', 'best')
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMmG])", word.replace("_", ""))
    return word if match is None else str(round(float(match[1]) * _SHORT[match[2]]))


def shortened(value: object) -> str:
    """A value as a message repeats it."""
    text = repr(value)
    return text if len(text) <= _MOST_REPEATED else text[:_MOST_REPEATED] + "…"
