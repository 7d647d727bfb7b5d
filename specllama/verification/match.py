"""Sample and compare: draw the target's own tokens and go on while they were drafted.

Every emitted token is drawn from the target's law at its position, so the rule is exact for any
drafts, however chosen. With a stream it is llama.cpp's and EAGLE's rule for deterministic
drafts and trees; with shared noise it is the drafter-invariant coupling of Daliri, Musco and
Suresh 2024 (arXiv 2408.07978), whose output does not depend on the drafts at all.
"""

from specllama.verification.types import ROOT, Chance, Proposal, Rows, Verdict


def match(proposal: Proposal, rows: Rows, chance: Chance, position: int) -> Verdict:
    """Walk down the tree with the target's draws; the first one not drafted ends the round."""
    path: list[int] = []
    node = ROOT
    while True:
        token = chance.pick(rows(node), position + len(path))
        child = proposal.child(node, token)
        if child is None:
            refused = bool(proposal.children(node))
            return Verdict(tuple(path), token, len(path) + refused)
        path.append(child)
        node = child
