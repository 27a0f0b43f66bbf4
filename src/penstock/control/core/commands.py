"""Carries out commands of users and drivers. A command is carried out whole, or raises an error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.config.flow import ClassConfig
from penstock.control.core import events as ev
from penstock.control.core.instructions import ManagerChanged, Recorded
from penstock.control.decide.cycle import SafetyLimits
from penstock.control.shed.strategies import strategy_for
from penstock.control.state.classes import check_stream
from penstock.control.state.sharing import RUNNING
from penstock.policies.load.base import describe_manager
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.moment import Moment
from penstock.vocabulary.stream_ref import StreamRef

if TYPE_CHECKING:
    from penstock.control.core.engine import Engine


def carry_out(engine: Engine, command: ev.Command, at: Moment) -> None:
    """Carries out a command.

    Args:
        engine: The control plane.
        command: The command.
        at: The present time.

    Raises:
        InvalidInputError: A rule forbids the command. Nothing was changed.
    """
    members = engine.members
    engine.table.everything_changed()  # some commands end with a look
    match command:
        case ev.ChangeClass():
            _change_class(engine, command, at)
        case ev.RemoveClass():
            _remove_class(engine, command.cls, at)
        case ev.Publish():
            _publish(engine, command)
        case ev.Unpublish():
            members.shared.release(command.stream)
        case ev.CheckRead():
            engine.classes.governed(command.cls)
            members.check_read(command.stream, command.cls, engine.classes.priorities)
        case ev.SetShedding():
            engine.granting.on = command.on
        case ev.Forbid():
            members.forbidden[command.who] = (command.rule, command.got, command.hint)
        case ev.MarkWindowed():
            members.windowed |= command.tokens
        case ev.Refuse():
            for query in members.with_tokens(command.tokens):
                query.flags.refuse(command.on)
        case ev.Drain():
            for query in members.with_tokens(command.tokens):
                query.flags.drain(command.on)
        case other:
            raise TypeError(f"nobody carries out {other!r}")
    engine.questions.changed()


def _publish(engine: Engine, command: ev.Publish) -> None:
    """Makes a class the owner of a shared stream, which classes that are not higher may read."""
    engine.classes.governed(command.cls)
    members, sic = engine.members, engine.ledger.sic
    members.shared.own(command.stream, command.cls, members.reads(), engine.classes.priorities)
    sic.shares(command.stream, command.tokens)
    for reader in members.readers.values():
        sic.joined(reader.token, reader.query)
    engine.table.everything_changed()


def _change_class(engine: Engine, command: ev.ChangeClass, at: Moment) -> None:
    """Puts new settings of a class in force: target, priority, manager, what is shed, limits."""
    name, flow = command.cls, engine.config
    before = engine.classes.governed(name)
    config = before.config.changed(command.changes, f"class {name}")
    _check_change(engine, name, before.config, config)
    same = config.shed == before.config.shed
    if not same:
        engine.granting.shedding.forget_values(name)  # other values of rows count from now on
    if config.manager == before.config.manager and config.settings == before.config.settings:
        governed = replace(
            before,
            config=config,
            period_s=config.manager_config().traits().period_s(config.target_s),
            shedder=before.shedder if same else config.build_shedder(flow.seed),
            strategy=strategy_for(config.shed),
        )
        governed.cycle.limits = SafetyLimits(config.min_keep_fraction)
        governed.cycle.dry_run = config.dry_run or flow.dry_run
    else:
        governed = engine.classes.govern(name, config, before.plant)
        manager = describe_manager(config.build_manager())
        engine.out.add(Recorded(ManagerChanged(name, governed.plant.next_id, manager)))
    before.plant.cls = config.query_class(name)
    engine.classes.put(name, governed)
    engine.divide(at)


def _check_change(engine: Engine, name: str, before: ClassConfig, after: ClassConfig) -> None:
    floor_s = engine.floor_s(name)
    if floor_s is not None and after.target_s < min(floor_s, before.target_s):
        raise InvalidInputError(
            f"class {name}: a target is at least the measured floor of {floor_s:.2f} s",
            f"{after.target_s:g} s",
            "a floor is two fixed costs of every query; use fewer queries or a longer target",
        )
    for key in ("shed_lane", "poison_after"):
        if getattr(before, key) != getattr(after, key):
            raise InvalidInputError(
                f"class {name}: {key} is set before its queries start",
                getattr(after, key),
                "change the configuration and restart them",
            )
    for query in engine.members.of_class(name):
        for reader in query.readers.values():
            check_stream(after, reader.stream)
    priorities = {**engine.classes.priorities, name: after.priority}
    engine.members.shared.check(engine.members.reads(), priorities)


def _remove_class(engine: Engine, name: str, at: Moment) -> None:
    """Removes a class whose queries have stopped. Other classes get its share; its last status is kept."""
    engine.classes.governed(name)
    members = engine.members
    owned = set(members.shared.owned(name))
    others = sorted(
        f"{StreamRef(stream).name} (class {cls})"
        for stream, cls in members.reads()
        if stream in owned and cls != name
    )
    running = sorted(query.name for query in members.of_class(name) if query.readers)
    if others:
        raise InvalidInputError(
            f"class {name}: a class that is removed owns no shared stream that others read",
            ", ".join(others),
            "stop those queries first, or let a query of another class write the stream",
        )
    if running:
        raise InvalidInputError(RUNNING.format(name), ", ".join(running), "stop them first")
    if len(engine.classes) == 1:
        raise InvalidInputError(f"class {name}: a flow has at least one class", "the last", "stop the flow")
    last = engine.status(at).classes[name]
    for query in list(members.of_class(name)):
        engine.forget(query)
    engine.granting.shedding.forget_values(name)
    members.past.forget(name)
    members.shared.forget(name)
    engine.classes.remove(name, last)
    engine.divide(at)
