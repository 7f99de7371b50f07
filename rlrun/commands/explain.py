"""rlrun explain ALGO [OPTION], GROUP, GROUP=NAME, OPTION, tuned=NAME or env=NAME [env.OPTION=VALUE ...]

Prints an algorithm's paper, what it records, how it was checked, every option with its comment, RLlib's name for each
option, and the meaning of every metric. For an environment, such as env=Pong, it prints the spaces, the agents, the
limit and every option with its comment. For a group (resources, runner, replay, model, env, logger, data, stop, eval,
imagine or checkpoint), or for one file of a group, such as model=lstm, it prints every option with its comment.
For an option, such as learning_starts or eval.every, it prints which algorithms and groups have it, how to type it, its
comment and its default; behind an algorithm, as in ppo lr, only those of this algorithm. For a tuned file it prints the
file."""

from __future__ import annotations

import importlib
import re
import textwrap
from typing import Any, get_type_hints

from rlrun.commands.list import docstring
from rlrun.config.paths import (
    base_options,
    bases,
    group_defaults,
    included_groups,
    inner_algorithm,
    model_of,
    options,
    output_of,
    replay_of,
    root,
    runner_of,
)
from rlrun.config.texts import CHOICES, of_choice, of_group, sections, text_of, without_defaults
from rlrun.core.errors import UserError, closest
from rlrun.rllib.option_map import option_map

COMMON = ("ppo", "dqn", "sac")  # algorithms whose options have names in other libraries

EVERY_RUN = """Metrics of every run, in addition to those above

  sample/return_mean, _std, _min,    unclipped returns of full games, over the last training episodes, of which
    _max                             episode_window says how many (100)
  sample/episode_length_mean, _min,  over the same episodes; sample/episodes counts all of them
    _max
  sample/env_steps_per_sec           since the previous row, or over the last 5 seconds if that is longer
  sample/policy_lag                  updates between the weights that acted and the weights that learn
  sample/queued_fragments            filled fragments that wait for the learner
  sample/return/<agent or group>     where an environment has several agents: the returns of each, same episodes
  sample/agent_steps                 decisions of all agents so far; an env step is a step of the environment
  sample/info/<name>, success_rate   numeric entries of the environment's info and its is_success, same episodes
  sample/custom/<name>, _min, _max   numbers that EnvCallbacks return at the end of an episode, same episodes
  learn/custom/<name>                numbers that callbacks return before learning
  eval/return_mean, _std, _min, _max unclipped returns of the evaluation's games, or what an rlrun.Evaluation returned
  eval/env_steps                     env steps of the weights that were evaluated, which may be older than the row
  learn/skipped_updates              share of gradient steps that were skipped because the gradient was not finite
  time/<section>_share               share of the learner's time: wait (for samplers), copy, learn, publish (weights),
                                     save, evaluate
  time/sampler_env_share             share of the samplers' time spent in the environment; the rest is the policy's
  time/env_us, policy_us             a sampler's microseconds per env step in the environment and in the policy
"""


def main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    flag = next((word for word in words if word.startswith("--")), None)
    if flag is not None:
        raise UserError(
            f"rlrun explain has no {flag}: it knows rlrun's own algorithms and options; those of your own are in your"
            " files"
        )
    name, *more = words
    group, equals, choice = name.partition("=")
    if group == "env" and equals:
        return environment(choice, more)
    if not equals and is_env(name):
        return environment(name, more)
    algo = choice if group == "algo" and equals else name
    if len(more) == 1 and algo in options("algo") and more[0] not in options("algo"):
        return where(more[0], algo)
    if more:
        raise UserError(f"rlrun explain takes one name, such as {name}; {more[0]!r} is one too many")
    if group == "tuned" and equals:
        return tuned(choice)
    if group in CHOICES:
        return choices(group, choice) if equals else choices(group)
    if name in sections():
        print(f"{name}.<option>=<value>\n\n{sections()[name]}")
        return 0
    return algorithm(algo) if algo in options("algo") else where(algo)


def algorithm(name: str) -> int:
    """Prints what an algorithm is, all its options with their comments, and what other libraries call them."""
    print(docstring(name))
    for base in base_options(name):
        if base.startswith("algo/"):
            print(f"\n{docstring(base.removeprefix('algo/'))}")
    texts = {file: (root() / "conf" / f"{file}.yaml").read_text() for file in (f"algo/{name}", *base_options(name))}
    print("\nOptions, as in conf/algo: algo.<name>=<value>\n")
    print(without_defaults(texts.pop(f"algo/{name}")))
    for base, inherited in texts.items():
        print(
            f"Options of {base.removeprefix('algo/')}, where they are not given above\n\n{without_defaults(inherited)}"
        )
    for group, file in included_groups(name).items():
        text = textwrap.indent((root() / "conf" / f"{file}.yaml").read_text(), "  ")
        print(f"Options of {file}, where they are not given above\n\n{group}:\n{text}")
    inner = inner_algorithm(name)
    if inner:
        print(
            f"The algorithm inside is {inner}; algo@algo.inner=<name> chooses another. Its options are"
            f" algo.inner.<name>=<value>: rlrun explain {inner}\n"
        )
    for title, files in groups_of(name, inner):
        print(f"{title}\n")
        print("\n".join(without_defaults(text_of(file)) for file in files))
    runner = runner_of(name) or (runner_of(inner) if inner else None)
    if runner:
        print(f"Options of its runner: runner.<name>=<value>\n\n{text_of(f'runner/{runner}')}")
    print("Options that are used only under a condition; elsewhere, values other than the default are refused\n")
    for option, condition in conditions(name, inner, runner):
        print(f"  {option:<36} {condition}")
    print()
    print(EVERY_RUN)
    rows = option_map(name)
    whose = "RLlib's names" + (" and the paper's" if any(row["rllib"].startswith("paper: ") for row in rows) else "")
    print(whose + (f", with {inner} inside" if inner else "") + "\n")
    for row in rows:
        print(f"  {row['rllib']:<46} {row['rlrun'] or '-':<34} {row.get('why', '')}".rstrip())
    return 0


def choices(group: str, choice: str | None = None) -> int:
    """Prints the options of a group, or of one choice of it."""
    if choice is not None and choice not in options(group):
        near = closest(choice, options(group)) or f" There are {', '.join(options(group))}."
        raise UserError(f"There is no {group}={choice}.{near}")
    print(f"{CHOICES[group]}\n")
    for title, text in of_group(group) if choice is None else of_choice(group, choice):
        print(f"{title}\n\n{textwrap.indent(text.strip(), '  ') or '  nothing of its own'}\n")
    if group == "env" and choice is None:
        print("rlrun explain env=NAME describes one environment, such as env=Pong; rlrun list envs has their names.")
    return 0


def is_env(name: str) -> bool:
    """Tells whether a name is an environment's and neither an algorithm's nor that of options."""
    from rlrun.envs.names import known_to

    return name not in {*options("algo"), *CHOICES, *sections()} and bool(known_to(name))


def tuned(name: str) -> int:
    """Prints a tuned file. UserError where there is no such file."""
    if name not in options("tuned"):
        raise UserError(f"There is no tuned={name}.{closest(name, options('tuned'))} (rlrun list tuned shows all)")
    print(f"rlrun train tuned={name} trains with this file; options behind it overrule its own.\n")
    print((root() / "tuned" / f"{name}.yaml").read_text().removeprefix("# @package _global_\n").rstrip())
    return 0


def where(name: str, algo: str | None = None) -> int:
    """Prints where a name is an option. UserError where it is none. algo: leaves out what other algorithms have, unless
    this one has no option of its own with this name."""
    from rlrun.config.hydra_errors import of_rllib
    from rlrun.config.option_lookup import find_option, last_names, said_of
    from rlrun.config.option_names import counterpart

    found = find_option(name)
    own = [one for one in found if one.owner == algo]
    if own:
        print(said_of(own))
        return 0
    if not found:
        theirs = (counterpart(f"algo.{name}", [f"algo={one}"]) for one in ([algo] if algo else COMMON))
        known = dict.fromkeys([*options("algo"), *CHOICES, *sections(), *last_names()])
        near = of_rllib(name) or next(filter(None, theirs), "") or closest(name, known)
        raise UserError(f"There is no algorithm, no group of options and no option {name!r}.{near}")
    print(said_of(found))
    inside = [one for one in found if one.key.startswith("algo.")]
    if inside:
        print("\nThe algorithm inside another one, as inside rnd, has algo.inner.<option>.", end=" ")
        print("rlrun explain ALGO prints all options of one.")
    return 0


def groups_of(name: str, inner: str | None) -> list[tuple[str, list[str]]]:
    """Returns the groups of options that an algorithm has besides its own and its runner's: (title, files of conf/)."""
    core = inner or name
    output, model = output_of(name), model_of(core)
    files = [f"model/{model}", *bases("model", model), f"model/output/{output}"]
    found = [("Options of its model: model.<name>=<value>; if shown twice, the first value counts", files)]
    if output == "distribution_and_value" or model == "lstm":
        memories = ["model/memory/lstm", "model/memory/gtrxl"]
        found.append(("Options of its memory, for model=lstm, gru or gtrxl: model.memory.<name>=<value>", memories))
    replay = replay_of(name) or replay_of(core)
    if replay:
        prioritized = [] if replay == "prioritized" else ["replay/prioritized"]
        title = f"Options of its replay, {replay}: replay.<name>=<value>"
        if prioritized:
            title += "; those of prioritized, with replay=prioritized, come last"
        found.append((title, [f"replay/{replay}", *bases("replay", replay), *prioritized]))
    return found


def environment(name: str, words: list[str]) -> int:
    """Prints what an environment's observations, actions and agents are, and its options. words: env.OPTION=VALUE of
    the command line, with which the environment is made. Raises UserError for other words."""
    import yaml

    from rlrun.config.types import typed
    from rlrun.envs.names import family_of
    from rlrun.envs.registry import FAMILIES, make_spec

    given = _env_options(words)
    family, canonical = family_of(name, given.pop("family", None))
    text = (root() / "conf" / "env" / f"{family}.yaml").read_text()
    spec = make_spec(typed(FAMILIES[family], {**yaml.safe_load(text), **given, "name": canonical}, "env"))
    limit = "unknown" if spec.max_episode_steps is None else f"{spec.max_episode_steps:,} env steps"
    lines = [("family", family), *((part.replace("_", " "), str(space)) for part, space in spec.obs.items())]
    lines += [("action", str(spec.action)), ("longest episode", limit)]
    if spec.agents is not None:
        lines += [(f"group {group}", f"{len(members)}: {', '.join(members)}") for group, members in spec.agents.groups]
    width = max(len(label) for label, _ in lines)
    print(f"{canonical}\n")
    for label, told in lines:
        print(f"  {label:<{width}}  {told}")
    for note in spec.notes:
        print(f"  {note}")
    text = re.sub(r"^name: \?\?\?", lambda _: f"name: {canonical}", text, count=1, flags=re.MULTILINE)
    print(f"\nOptions: env.<name>=<value>\n\n{text.rstrip()}")
    return 0


def _env_options(words: list[str]) -> dict[str, Any]:
    """The options of env.OPTION=VALUE words. Raises UserError for a word that is none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    given: dict[str, Any] = {}
    for word in words:
        try:
            parsed = OverridesParser.create().parse_override(word)
        except HydraException:
            parsed = None
        group, _, option = parsed.key_or_group.partition(".") if parsed is not None else ("", "", "")
        if parsed is None or group != "env" or not option or "." in option:
            raise UserError(f"behind env=NAME, rlrun explain takes options such as env.kwargs={{N: 2}}, not {word!r}")
        given[option] = parsed.value()
    return given


def conditions(name: str, inner: str | None, runner: str | None) -> list[tuple[str, str]]:
    """Returns the options of an algorithm's runs that are used only under a condition, and the conditions in words."""
    from rlrun.config.algorithms import algorithm_class
    from rlrun.config.run import RunConfig
    from rlrun.config.unused import conditional_in
    from rlrun.core.conditions import OnlyFor
    from rlrun.envs.agent_games import AgentsConfig
    from rlrun.envs.dmc import DmcConfig
    from rlrun.envs.gym import GymConfig
    from rlrun.models.config import AttentionConfig, ModelConfig
    from rlrun.replay.layout import PrioritizedReplayConfig

    def config(algo: str) -> type:
        return importlib.import_module(algorithm_class({"name": algo}).__module__).Config

    replays = replay_of(name) or (inner and replay_of(inner))
    own = group_defaults("model", model_of(inner or name))
    places = [
        ("algo", config(name)),
        *([("algo.inner", config(inner))] if inner else []),
        ("model", ModelConfig.variant(own | group_defaults("model/output", output_of(name)))),
        *([("replay", PrioritizedReplayConfig)] if replays else []),
        *([("runner", importlib.import_module(f"rlrun.runners.{runner}").Config)] if runner else []),
        ("env", GymConfig),
        ("env", AgentsConfig),
        ("env", DmcConfig),
        *([] if "stoch" in own else [("model.memory", AttentionConfig)]),
        *((part, get_type_hints(RunConfig)[part]) for part in ("resources", "eval", "checkpoint", "stop")),
    ]
    found: dict[str, str] = {}
    for path, cls in places:
        for option, group, one in conditional_in(cls, path):
            told = f"for {one.kind}" if isinstance(one, OnlyFor) else one.told(group)
            if told not in found.get(option, ""):
                found[option] = f"{found[option]}, and {told}" if option in found else told
    return list(found.items())
