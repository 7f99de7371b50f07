"""A plan as text, which rlrun train --plan prints."""

from __future__ import annotations

from collections.abc import Mapping

from rlrun.core.specs import EnvSpec
from rlrun.machine.asked import counted
from rlrun.runtime.plan import Plan


def described(plan: Plan) -> str:
    """Returns the plan, a line for each part, and the reasons for what was chosen."""
    made, needs, config = plan.resources, plan.needs, plan.config
    plays = config.runner.name != "offline"
    lines = [
        ("algorithm", f"{config.algorithm_name}; {_batch(plan)}"),
        ("environment", f"{plan.spec.name}: {_spaces(plan.spec, plan.policies)}"),
        ("policy", f"{plan.parameters:,} parameters; recorded with each row: {', '.join(needs.record) or 'nothing'}"),
        ("runner", f"{config.runner.name}: {_learners(plan)}"),
        ("samplers", _samplers(plan) if plays else "none: rows are drawn from data, and no environment is stepped"),
    ]
    if plays and needs.population is None:
        lines.append(
            (
                "fragments",
                (
                    f"{counted(plan.fragment_rows, 'row')} x {counted(plan.fragment_columns, 'column')},"
                    f" {plan.fragment_bytes / 1e6:.2f} MB each;"
                    f" {plan.fragments_per_producer} for each {_producer(plan)}"
                ),
            )
        )
    if plan.replay is not None:
        lines.append(("replay", str(plan.replay)))
    if plan.data is not None:
        lines.append(("data", str(plan.data)))
    if plays:
        lines.append(("weights", _weights(plan)))
    if plan.evaluates:
        lines.append(("evaluation", _evaluation(plan)))
    if plan.estimates:
        lines.append(("estimates", _estimates(plan)))
    width = max(len(name) for name, _ in lines)
    told = [f"{name:<{width}}  {text}" for name, text in lines]
    return "\n".join([*told, *(["because"] if made.why else []), *(f"  {reason}" for reason in made.why)])


def _batch(plan: Plan) -> str:
    needs = plan.needs
    if needs.population is not None:
        return f"an update learns from the returns of at least {needs.population.pairs} pairs of perturbations"
    columns, learners = plan.columns_per_learner, plan.learners_in_lockstep
    each = f", {counted(columns, 'column')} for each of {learners} learners" if learners > 1 else ""
    rounds = ""
    if needs.tasks is not None:
        rounds = f", in {needs.tasks.rounds} rounds of {needs.tasks.count} tasks"
    size = f"{counted(needs.columns, 'column')} x {counted(needs.rows, 'row')}"
    if needs.replay is not None:
        size, each = _drawn(plan), f", {columns:,} for each of {learners} learners" if learners > 1 else ""
    return f"an update learns from {size}{each}{rounds}{_pace(plan)}"


def _drawn(plan: Plan) -> str:
    """What an update draws from a replay: rows, transitions over several rows (n_step), or sequences."""
    needs, asked = plan.needs, plan.needs.replay
    assert asked is not None
    where = "recorded data" if plan.config.runner.name == "offline" else "the replay"
    many, rows = f"{needs.columns:,}", needs.rows
    if asked.sequences or asked.rows_learnt > 1:
        burn_in = rows - asked.rows_learnt if asked.sequences else 0
        warm = f" (the first {burn_in:,} only update memories)" if burn_in > 0 else ""
        return f"{counted(needs.columns, 'sequence')} of {counted(rows, 'row')}{warm} that are drawn from {where}"
    if rows == 1:
        return f"{counted(needs.columns, 'row')} that {'is' if needs.columns == 1 else 'are'} drawn from {where}"
    length = f"{asked.rows_from} to {rows}" if asked.rows_from < rows else f"{rows}"
    return f"{many} transitions of {length} rows that are drawn from {where}"


def _producer(plan: Plan) -> str:
    """Who fills fragments: with batched inference a group of environments, and with serial the learner itself."""
    made = plan.resources
    return "group" if made.groups > 1 else "learner" if made.inference == "serial" else "sampler"


def _pace(plan: Plan) -> str:
    """How many env steps pass between updates that learn from a replay."""
    asked, runner = plan.needs.replay, plan.config.runner
    if asked is None or runner.name == "offline" or not asked.ratio or getattr(runner, "pace", "ratio") == "free":
        return ""
    learnt = plan.needs.columns * asked.rows_learnt
    if asked.ratio == learnt:
        return "; an update for every env step"
    if asked.ratio > learnt:
        return f"; {asked.ratio / learnt:g} updates for each env step"
    return f"; an update every {learnt / asked.ratio:g} env steps"


def _spaces(spec: EnvSpec, policies: Mapping[str, tuple[int, ...]]) -> str:
    told = f"observation {spec.observation}, action {spec.action}"
    if spec.agents is None:
        return told
    names = spec.agents.names
    told = f"{told}; {len(names)} agents, {'all in one column' if spec.joint else 'each a column'}"
    if not policies:
        return f"{told}, with one policy: {', '.join(names)}"
    each = (f"{name} ({', '.join(names[number] for number in members)})" for name, members in policies.items())
    return f"{told}, with {len(policies)} policies: {', '.join(each)}"


def _learners(plan: Plan) -> str:
    made = plan.resources
    where = made.device.type if made.num_learners > 1 else str(made.device)
    together = (
        ""
        if made.num_learners == 1
        else ", which make every update together"
        if plan.lockstep
        else ", which share weights without waiting"
    )
    numbers = " or ".join(map(str, made.learner_threads))
    threads = f"{numbers} thread{'s' * (made.learner_threads != (1,))}"
    nodes = f" of {len(made.learner_nodes)} nodes" if len(made.learner_nodes) > 1 else ""
    many = f"{made.num_learners} learner{'s' * (made.num_learners > 1)}"
    return f"{many} on {where}{nodes}{together}; {made.precision}, {threads}"


def _samplers(plan: Plan) -> str:
    made = plan.resources
    processes = "1 process" if made.num_samplers == 1 else f"{made.num_samplers} processes, each"
    who = {
        "serial": "the learner steps the environments itself",
        "local": f"{processes} with a copy of the policy",
        "batched": f"{made.num_samplers} processes of {made.groups} groups, for which a thread beside the learner acts",
    }[made.inference]
    return (
        f"{who}; {_environments(made.envs_per_group)} in a group, {made.num_envs} in all"
        if made.groups > 1
        else (f"{who}; {_environments(made.envs_per_group)} each, {made.num_envs} in all")
    )


def _environments(count: int) -> str:
    return f"{count} environment{'s' * (count > 1)}"


def _weights(plan: Plan) -> str:
    runner = plan.config.runner
    if plan.resources.inference == "serial":
        return "the learner's own act"
    if runner.name == "actor_learner":
        interval = "update" if runner.broadcast_interval == 1 else f"{runner.broadcast_interval} updates"
        return f"published after every {interval}; samplers do not wait for them"
    if runner.name == "distributed_replay":
        return f"published every {runner.max_weight_sync_delay} env steps; samplers do not wait for them"
    return (
        "published after every update; samplers wait for them"
        if runner.synchronous
        else "published when they have changed"
    )


def _estimates(plan: Plan) -> str:
    cfg, run = plan.config.run.eval, plan.config.run
    where = cfg.estimate.path or ", ".join(run.data.shares)
    many = "all" if cfg.estimate.episodes is None else f"at most {cfg.estimate.episodes:,}"
    return f"{', '.join(cfg.estimate.methods)} from {many} episodes of {where} every {cfg.every} env steps"


def _evaluation(plan: Plan) -> str:
    cfg, apart = plan.config.run.eval, plan.config.run.eval.workers > 0 and not plan.resources.exact
    what = (
        cfg.function
        if cfg.function is not None
        else f"{cfg.env_steps} env steps and the games that they end in"
        if cfg.env_steps is not None
        else f"{cfg.episodes} games"
    )
    who = f"{cfg.workers} process{'es' * (cfg.workers > 1)}" if apart else "the learner's process"
    meanwhile = "goes on" if apart and cfg.beside else "waits"
    return f"{what} every {cfg.every} env steps in {who}; training {meanwhile} meanwhile"
