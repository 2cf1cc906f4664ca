"""The TextWorld PDDL engine, made cheap: every state of a game is computed once per process.

Rules and text are the engine's own (fast-downward transitions, context-sensitive grammar); only what it recomputes is
remembered. Three facts make that exact, and a test compares the transcript with the stock engine's:

* TextWorld sorts the facts before it fills a grammar rule: text and commands are functions of the set of facts.
* fast-downward's transitions are functions of the same facts; operator ids are stable for one translated problem.
* Only operators change facts, so any state is reached again by replaying the operators that led to it.

A game is therefore a graph of :class:`State` nodes that grows on demand, shared by all rollouts of a group. The planner
(``policy_commands``, seconds a call) is never asked. One engine per process: fast-downward keeps its task in global
memory and TatSu's parsers are singletons, so threads would corrupt both.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import gc
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from rised.environments.alfworld.grammar import Grammar
from rised.environments.base import EnvironmentFault

NOTHING_HAPPENS = "Nothing happens."
_MEMO = 20_000


class Operator(NamedTuple):
    """A grounded action: fast-downward's id and number of effects, action name (lower case), PDDL ids it binds."""

    id: int
    effects: int
    action: str
    arguments: tuple[str, ...]


class Transition(NamedTuple):
    """What an admissible command leads to."""

    feedback: str
    state: State
    operator: Operator


@dataclass(slots=True, eq=False)
class State:
    """One state of a game.

    ``commands`` maps each admissible command to its operator, sorted as the engine lists them; ``path`` is one sequence
    of operators that leads here from the start; ``edges`` holds the transitions computed so far.
    """

    facts: frozenset[Any]
    won: bool
    commands: dict[str, Operator]
    path: tuple[Operator, ...]
    edges: dict[str, Transition] = field(default_factory=dict)


@contextlib.contextmanager
def kept_argv() -> Iterator[None]:
    """fast_downward overwrites sys.argv at import and at every translation."""
    saved = sys.argv
    sys.argv = list(saved)
    try:
        yield
    finally:
        sys.argv = saved


@contextlib.contextmanager
def _paused_collection() -> Iterator[None]:
    """Translating a problem makes so many small objects that the garbage collector takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def _engine() -> SimpleNamespace:
    """The engine's modules, parsers memoised, deep copies of read-only tables left out; its text is unchanged."""
    with kept_argv():
        import fast_downward
        import textworld.envs.pddl.logic as pddl
        import textworld.envs.pddl.textgen as textgen
        import textworld.logic as logic

    stock_parse = textgen._parse_and_convert
    parse = functools.lru_cache(_MEMO)(lambda text, rule_name: stock_parse(text, rule_name=rule_name))

    def parse_symbols(text: str, rule_name: str = "symbols", trace: bool = False) -> Any:
        """A derivation writes its context into the symbols, so each gets its own copy."""
        return copy.deepcopy(parse(text, rule_name))

    def copy_context(context: dict[str, Any]) -> dict[str, Any]:
        """A derivation only rebinds entries of the two tables, never changes what they hold."""
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    textgen._parse_and_convert = parse_symbols
    textgen.copy_context = copy_context
    logic.Rule.parse_conjunctive_query = staticmethod(functools.lru_cache(_MEMO)(logic.Rule.parse_conjunctive_query))
    return SimpleNamespace(
        planner=fast_downward, pddl=pddl, logic=logic, library=fast_downward.load_lib(), game=None, path=()
    )


@functools.cache
def _parsed_grammar(text: str) -> tuple[dict[str, Any], Any]:
    actions, rules = _engine().pddl._parse_and_convert(text, rule_name="pddlStart")
    return actions, rules


@dataclass(frozen=True, slots=True)
class Translation:
    """A grounded problem: what fast-downward's translator made of it, all that an episode needs.

    ``sas``: the planning task; ``types``: PDDL id -> type; ``supertypes``: type -> supertypes; ``parameters``: action
    -> (name, type) of each; ``initial``: (predicate, arguments) of each fact given by the problem.
    """

    sas: str
    types: dict[str, str]
    supertypes: dict[str, list[str]]
    parameters: dict[str, list[tuple[str, str]]]
    initial: list[tuple[str, list[str]]]

    def packed(self) -> str:
        """As short text, for a task's payload."""
        text = json.dumps([self.sas, self.types, self.supertypes, self.parameters, self.initial])
        return base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")

    @classmethod
    def unpacked(cls, text: str) -> Translation:
        """The reverse of :meth:`packed`."""
        try:
            plain = zlib.decompress(base64.b64decode(text, validate=True))
            sas, types, supertypes, parameters, initial = json.loads(plain)
        except (ValueError, zlib.error) as error:
            raise EnvironmentFault(f"a task's translation is damaged: {error}; prepare the panel again") from error
        pairs = {action: [(name, kind) for name, kind in items] for action, items in parameters.items()}
        return cls(sas, types, supertypes, pairs, [(predicate, arguments) for predicate, arguments in initial])


def translate(problem: str, grammar: Grammar) -> Translation:
    """Ground a PDDL problem (about 0.1 s for a small room)."""
    planner = _engine().planner
    with kept_argv(), _paused_collection():
        try:
            task, sas = planner.pddl2sas(grammar.domain, problem, optimize=False)
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(f"fast-downward cannot read the game's PDDL problem: {error!r}") from error
    atom_type = planner.translate.pddl.conditions.Atom
    return Translation(
        sas=sas,
        types={item.name: item.type_name for item in task.objects},
        # The root type and the domain's own are both called `object`; the engine keeps the first.
        supertypes={item.name: list(item.supertype_names) for item in reversed(task.types)},
        parameters={
            action.name: [(item.name.strip("?"), item.type_name) for item in action.parameters]
            for action in task.actions
        },
        # The translator keeps these in an order that differs from process to process.
        initial=sorted(
            (atom.predicate, list(atom.args))
            for atom in task.init
            if isinstance(atom, atom_type) and atom.predicate != "="
        ),
    )


class GameGraph:
    """One game, explored on demand. ``names`` maps PDDL ids to names in the text (``drawer 2``)."""

    def __init__(self, translation: Translation, goal: str, grammar: Grammar) -> None:
        engine = _engine()
        self._sas = translation.sas.encode("utf-8")
        self._types = translation.types
        self._parameters = translation.parameters
        self._actions, rules = _parsed_grammar(grammar.text)
        self._grammar_text = grammar.text
        self._read: dict[str, bool] = {}
        self._grammar = copy.copy(rules)
        self._grammar._rules = {**rules._rules, "task": [_with_goal(rule, goal) for rule in rules._rules["task"]]}
        self._logic = engine.logic.GameLogic()
        for name, supertypes in translation.supertypes.items():
            self._logic.types.add(engine.logic.Type(name, supertypes))
        self._load()
        facts = self._initial_facts(translation)
        self._facts = engine.logic.State(self._logic, facts)
        self._in_facts: frozenset[Any] = frozenset(facts)
        self._entities = self._entity_infos(facts)
        self.names: dict[str, str] = {identifier: info.name for identifier, info in self._entities.items()}
        self._command_text: dict[tuple[str, tuple[str, ...]], str] = {}
        self._states: dict[frozenset[Any], State] = {}
        self.intro: str = self._derive("#intro#", None)
        self.initial = self._state(self._in_facts, ())

    @property
    def state_count(self) -> int:
        """Number of states computed so far."""
        return len(self._states)

    def follow(self, state: State, command: str) -> Transition:
        """What an admissible command leads to; KeyError for any other command."""
        known = state.edges.get(command)
        if known is None:
            known = state.edges[command] = self._expand(state, state.commands[command])
        return known

    def _load(self) -> None:
        engine = _engine()
        engine.library.load_sas(self._sas)
        engine.game, engine.path = self, ()

    def _apply(self, operator: Operator) -> list[Any]:
        """Apply one operator in fast-downward and return its effects as facts (negated ones as ``not_...``)."""
        engine = _engine()
        effects = (engine.pddl.Atom * operator.effects)()
        engine.library.apply_operator(operator.id, effects)
        engine.path = (*engine.path, operator)
        return [effect.get_fact(self._types) for effect in effects]

    def _synchronise(self, path: tuple[Operator, ...]) -> None:
        """Bring fast-downward to the state at the end of ``path``."""
        engine = _engine()
        if engine.game is not self or engine.path != path[: len(engine.path)]:
            self._load()
        for operator in path[len(engine.path) :]:
            self._apply(operator)

    def _initial_facts(self, translation: Translation) -> list[Any]:
        engine = _engine()
        proposition, variable = engine.logic.Proposition, engine.logic.Variable
        facts = [
            proposition(predicate, [variable(name, self._types[name]) for name in arguments])
            for predicate, arguments in translation.initial
        ]
        atoms = (engine.pddl.Atom * engine.library.get_state_size())()
        engine.library.get_state(atoms)
        reached = (atom.get_fact(self._types) for atom in atoms)
        return [*facts, *(fact for fact in reached if not fact.is_negation)]

    def _entity_infos(self, facts: list[Any]) -> dict[str, Any]:
        from alfworld.agents.utils.misc import Demangler
        from textworld.generator.game import EntityInfo

        infos = {item.name: EntityInfo(item.name, item.type) for fact in facts for item in fact.arguments}
        names = Demangler(game_infos=infos, shuffle=False)
        for info in infos.values():
            info.name = names.demangle_alfred_name(info.id)
            info.definite, info.indefinite = "the", "a"
        return infos

    def _derive(self, start: str, operator: Operator | None) -> str:
        """Text of a grammar rule over the current facts."""
        variables, mapping = {}, {}
        if operator is not None:
            logic = _engine().logic
            for (name, kind), argument in zip(self._parameters[operator.action], operator.arguments, strict=False):
                variables[name] = self._entities[argument]
                mapping[logic.Placeholder(name, kind)] = logic.Variable(argument, kind)
        context = {
            "state": self._facts,
            "facts": [],
            "variables": variables,
            "mapping": mapping,
            "entity_infos": self._entities,
        }
        text: str = self._grammar.derive(start, context)
        return text

    def _command(self, operator: Operator) -> str:
        """The command of an operator. Templates only read facts that no action changes, so it is derived once."""
        key = (operator.action, operator.arguments)
        text = self._command_text.get(key)
        if text is None:
            template = self._actions[operator.action].template
            text = self._command_text[key] = self._derive(template, operator).format(**self.names)
        return text

    def _commands(self) -> dict[str, Operator]:
        """Admissible commands of fast-downward's current state, sorted; of equal commands the first operator counts."""
        engine = _engine()
        count = engine.library.get_applicable_operators_count()
        found = (engine.planner.Operator * count)()
        engine.library.get_applicable_operators(found)
        commands: dict[str, Operator] = {}
        for item in found:
            action, *arguments = item.name.split()
            operator = Operator(item.id, item.nb_effect_atoms, action, tuple(arguments))
            commands.setdefault(self._command(operator), operator)
        return dict(sorted(commands.items()))

    def _is_read(self, name: str) -> bool:
        """Whether a fact can matter.

        ``checked`` and negated facts grow with the history; no precondition reads them and the grammar reads few. The
        rest is left out, so that histories that end in one state meet there.
        """
        if name not in self._read:
            history = name in ("checked", "examined", "wasinreceptacle") or name.startswith("not_")
            self._read[name] = not history or f"{name}(" in self._grammar_text
        return self._read[name]

    def _show(self, facts: frozenset[Any]) -> None:
        """Make ``facts`` the ones that the grammar reads."""
        for fact in self._in_facts - facts:
            self._facts.remove_fact(fact)
        for fact in facts - self._in_facts:
            self._facts.add_fact(fact)
        self._in_facts = facts

    def _state(self, facts: frozenset[Any], path: tuple[Operator, ...]) -> State:
        """The state of ``facts``, in which fast-downward stands now."""
        state = self._states.get(facts)
        if state is None:
            won = bool(_engine().library.check_goal())
            state = self._states[facts] = State(facts, won, self._commands(), path)
        return state

    def _expand(self, state: State, operator: Operator) -> Transition:
        self._synchronise(state.path)
        changed = set(state.facts)
        for effect in self._apply(operator):
            changed.discard(effect.negate())
            if self._is_read(effect.name):
                changed.add(effect)
        facts = frozenset(changed)
        self._show(facts)
        feedback = self._derive(self._actions[operator.action].feedback_rule, operator)
        return Transition(feedback, self._state(facts, (*state.path, operator)), operator)


def _with_goal(rule: Any, goal: str) -> Any:
    """The grammar's task sentence with its goal filled in."""
    from rised.environments.alfworld.grammar import GOAL_PLACEHOLDER

    filled = copy.deepcopy(rule)
    for symbol in filled.rhs:
        symbol.symbol = symbol.symbol.replace(GOAL_PLACEHOLDER, goal)
    return filled
