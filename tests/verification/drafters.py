"""Small drafters, written as the real ones: a law, then the chance of the rule draws from it."""

from collections.abc import Callable, Sequence

from specllama.sampling.distribution import Distribution
from specllama.verification.types import ROOT, CoinChance, Proposal

from .enumeration import Drafter, Model, Tokens

Stop = Callable[[Distribution], bool]


def sampled(length: int, stop: Stop = lambda law: False) -> Drafter:
    """A chain from the draft's law; `stop` looks at a law before anything is drawn from it."""

    def draft(model: Model, chance: CoinChance, context: Tokens) -> Proposal:
        tokens: list[int] = []
        laws: list[Distribution] = []
        while len(tokens) < length:
            law = model((*context, *tokens))
            if stop(law):
                break
            laws.append(law)
            tokens += chance.children(law, len(context) + len(tokens), 1)
        return Proposal.chain(tokens, laws)

    return draft


def sampled_until_unlikely(length: int, threshold: float, keep: bool) -> Drafter:
    """Stops after drawing an unlikely token, which is kept (exact) or dropped (biased)."""

    def draft(model: Model, chance: CoinChance, context: Tokens) -> Proposal:
        tokens: list[int] = []
        laws: list[Distribution] = []
        while len(tokens) < length:
            law = model((*context, *tokens))
            token = chance.children(law, len(context) + len(tokens), 1)[0]
            unlikely = law.prob(token) < threshold
            if not unlikely or keep:
                tokens.append(token)
                laws.append(law)
            if unlikely:
                break
        return Proposal.chain(tokens, laws)

    return draft


def greedy(length: int) -> Drafter:
    """The draft's most probable tokens, stated as what they are: deterministic."""

    def draft(model: Model, chance: CoinChance, context: Tokens) -> Proposal:
        tokens: list[int] = []
        while len(tokens) < length:
            tokens += model((*context, *tokens)).top(1)
        return Proposal.chain(tokens)

    return draft


def fixed(*tokens: int) -> Drafter:
    """Always the same tokens, whatever the models say."""
    return lambda model, chance, context: Proposal.chain(tokens)


def mixed(length: int) -> Drafter:
    """Deterministic and drawn tokens in turn, as a look-up continued by a draft model."""

    def draft(model: Model, chance: CoinChance, context: Tokens) -> Proposal:
        tokens: list[int] = []
        laws: list[Distribution | None] = []
        while len(tokens) < length:
            law = model((*context, *tokens))
            drawn = len(tokens) % 2 == 1
            laws.append(law if drawn else None)
            position = len(context) + len(tokens)
            tokens += chance.children(law, position, 1) if drawn else law.top(1)
        return Proposal(tuple(tokens), tuple(range(-1, length - 1)), (*laws, None))

    return draft


def tree(*branches: int) -> Drafter:
    """`branches[d]` children of every node at depth d, chosen by the chance."""

    def draft(model: Model, chance: CoinChance, context: Tokens) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        level: Sequence[tuple[int, Tokens]] = [(ROOT, context)]
        for branch in branches:
            below = []
            for node, path in level:
                for token in chance.children(model(path), len(path), branch):
                    below.append((len(tokens), (*path, token)))
                    tokens.append(token)
                    parents.append(node)
            level = below
        return Proposal(tuple(tokens), tuple(parents), (None,) * (len(tokens) + 1))

    return draft
