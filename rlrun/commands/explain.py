"""rlrun explain ALGO: its paper, what it records, how it was checked, every option with its comment, and RLlib's names for them."""

from __future__ import annotations

import textwrap

from rlrun.commands.list import docstring
from rlrun.config.paths import base_options, included_groups, inner_algorithm, options, root
from rlrun.core.errors import UserError, closest
from rlrun.rllib.option_map import option_map

EVERY_RUN = """Metrics of every run, beside those above

  sample/return_mean, _min, _max     full games, unclipped, of the last 100 training episodes; episode_length_mean and episodes likewise
  sample/env_steps_per_sec           since the row before
  sample/policy_lag                  updates made between the weights that acted and those that learn
  sample/queued_fragments            filled ones that wait for the learner
  sample/info/<name>, success_rate   numeric entries of the environment's info and its is_success, last 100 episodes
  learn/skipped_updates              share of gradient steps that were not taken, because the gradient was not finite
  time/<section>_share               of the learner's time: wait (for samplers), copy, learn, publish (weights), save, evaluate
  time/sampler_env_share             of the samplers' time: the environment; the rest is the policy
  time/env_us, policy_us             microseconds of a sampler per env step, in the environment and in the policy
"""


def main(words: list[str]) -> int:
    if len(words) != 1 or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    name = words[0]
    if name not in options("algo"):
        raise UserError(f"There is no algorithm {name!r}.{closest(name, options('algo'))}")
    print(docstring(name))
    for base in base_options(name):
        if base.startswith("algo/"):
            print(f"\n{docstring(base.removeprefix('algo/'))}")
    texts = {file: (root() / "conf" / f"{file}.yaml").read_text() for file in (f"algo/{name}", *base_options(name))}
    print("\nOptions, as in conf/algo: algo.<name>=<value>\n")
    print(without_defaults(texts.pop(f"algo/{name}")))
    for base, inherited in texts.items():
        print(f"Those of {base.removeprefix('algo/')}, unless they stand above\n\n{without_defaults(inherited)}")
    for group, file in included_groups(name).items():
        text = textwrap.indent((root() / "conf" / f"{file}.yaml").read_text(), "  ")
        print(f"Those of {file}, unless they stand above\n\n{group}:\n{text}")
    inner = inner_algorithm(name)
    if inner:
        print(f"The algorithm inside is {inner}, or another: algo@algo.inner=<name>. Its options are algo.inner.<name>=<value>: rlrun explain {inner}\n")
    runner = compose_runner(name) or (compose_runner(inner) if inner else None)
    if runner:
        print(f"Options of its runner: runner.<name>=<value>\n\n{(root() / 'conf' / 'runner' / f'{runner}.yaml').read_text()}")
    print(EVERY_RUN)
    print("RLlib's names" + (f", with {inner} inside" if inner else "") + "\n")
    for row in option_map(name):
        print(f"  {row['rllib']:<46} {row['rlrun'] or '-':<34} {row.get('why', '')}".rstrip())
    return 0


def compose_runner(name: str) -> str | None:
    """The runner that conf/algo/<name>.yaml, or the file that it begins with, chooses."""
    for file in (f"algo/{name}", *base_options(name)):
        for line in (root() / "conf" / f"{file}.yaml").read_text().splitlines():
            if "/runner@" in line:
                return line.split(":")[-1].strip()
    return None


def without_defaults(text: str) -> str:
    """A commented yaml without Hydra's defaults list."""
    lines, inside = [], False
    for line in text.splitlines():
        inside = line.startswith("defaults:") or (inside and (line.startswith((" ", "-")) or not line.strip()))
        if not inside:
            lines.append(line)
    return "\n".join(lines) + "\n"
