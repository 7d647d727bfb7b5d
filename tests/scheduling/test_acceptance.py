"""How often drafted tokens are accepted, learned from few."""

from __future__ import annotations

import pytest

from specllama.scheduling.acceptance import Acceptance
from tests.scheduling.machines import (
    observe,
)


class TestAcceptance:
    def test_starts_hopeful(self) -> None:
        assert 0.5 < Acceptance().at_depth(0) < 1.0
        assert Acceptance().at_confidence(0.95) > Acceptance().at_confidence(0.15)

    def test_learns_by_depth(self) -> None:
        acceptance = Acceptance()
        for _ in range(100):
            observe(acceptance, 2, 1, 2, [])
        assert acceptance.at_depth(0) > 0.9
        assert acceptance.at_depth(1) < 0.1
        assert acceptance.at_depth(5) == acceptance.at_depth(1)

    def test_learns_by_confidence(self) -> None:
        acceptance = Acceptance()
        for _ in range(100):
            observe(acceptance, 2, 1, 2, [0.5, 0.9])
        assert acceptance.at_confidence(0.5) > 0.9
        assert acceptance.at_confidence(0.9) < 0.2
        assert acceptance.at_confidence(0.94) < 0.2

    def test_what_was_not_tested_teaches_nothing(self) -> None:
        acceptance = Acceptance()
        observe(acceptance, 2, 0, 0, [0.9, 0.9])
        assert acceptance.at_depth(0) == Acceptance().at_depth(0)
        assert acceptance.at_confidence(0.9) == Acceptance().at_confidence(0.9)

    def test_chains_teach_nothing_of_second_children(self) -> None:
        acceptance = Acceptance()
        first, *others = acceptance.by_rank()
        for _ in range(50):
            observe(acceptance, 1, 1, 1, [])
        assert acceptance.by_rank()[0] > first
        assert acceptance.by_rank()[1:] == others

    def test_depth_and_confidence_together(self) -> None:
        """The second token is worse than the first, at the same confidence."""
        acceptance = Acceptance()
        for _ in range(100):
            observe(acceptance, 2, 1, 2, [0.85, 0.85])
        assert acceptance.at_confidence(0.85, 0) > 0.9
        assert acceptance.at_confidence(0.85, 1) < 0.1

    def test_what_is_kept_is_where_the_next_session_starts(self) -> None:
        """What is usual over many replies, each much like the others."""
        before = Acceptance()
        for _ in range(30):
            before.fade()
            for _ in range(40):
                before.look(0.5)
                observe(before, 2, 0, 1, [0.5])
        after = Acceptance(before.known())
        assert after.at_depth(0) == pytest.approx(before.at_depth(0), abs=0.05)
        assert after.at_confidence(0.5) == pytest.approx(before.at_confidence(0.5), abs=0.05)
        assert after.at_depth(0) < 0.05
        assert [share for share, _ in after.looks()] == pytest.approx([20 / 24, 4 / 24])

    @pytest.mark.parametrize("length", [1, 10, 1000])
    @pytest.mark.parametrize("accepted", [0, 1])
    def test_a_reply_changes_what_is_usual_only_a_little(self, length: int, accepted: int) -> None:
        acceptance = Acceptance()
        usual = acceptance.known()["depths"][0]
        for _ in range(length):
            observe(acceptance, 1, accepted, 1, [0.5])
        way = (acceptance.known()["depths"][0] - usual) / (accepted - usual)
        assert 0.01 < way <= 0.15, "of the way to what it was like, however long"

    def test_a_new_reply_is_expected_to_be_as_usual(self) -> None:
        """Far nearer to what is usual than to the reply before it, and quick to learn."""
        acceptance = Acceptance()
        for _ in range(100):
            observe(acceptance, 1, 0, 1, [0.5])
        before, unsure = acceptance.at_depth(0), acceptance.at_confidence(0.5)
        usual = acceptance.known()["depths"][0]
        acceptance.fade()
        assert before < 0.1
        assert 3 * before < acceptance.at_depth(0) < usual
        assert acceptance.at_confidence(0.5) > 3 * unsure
        for _ in range(4):
            observe(acceptance, 1, 1, 1, [])
        assert acceptance.at_depth(0) > 0.5

    def test_one_refused_token_turns_no_reply(self) -> None:
        """It was given up after a single one, though drafts usually are good; many are believed."""
        acceptance = Acceptance({"depths": [0.8]})
        usual, sure = acceptance.at_depth(0), acceptance.at_confidence(0.5)
        observe(acceptance, 1, 0, 1, [0.5])
        assert 0.85 * usual < acceptance.at_depth(0) < usual
        assert 0.8 * sure < acceptance.at_confidence(0.5) < sure, "though it counts there twice"
        for _ in range(40):
            observe(acceptance, 1, 0, 1, [0.5])
        assert acceptance.at_depth(0) < 0.1
        assert acceptance.at_confidence(0.5) < 0.1

    def test_a_bad_beginning_turns_no_reply_either(self) -> None:
        """Replies whose drafts are usually good for .67 differ by a tenth, six tokens by two."""
        acceptance = Acceptance({"depths": [0.67]})
        for accepted in (0, 0, 1, 0, 0, 0):
            observe(acceptance, 1, accepted, 1, [])
        assert 0.5 < acceptance.at_depth(0) < 0.55

    def test_what_is_usual_weighs_as_much_in_each_new_reply(self) -> None:
        """However often its weight has waned before."""
        acceptance = Acceptance({"depths": [0.8]})
        moved = []
        for _ in range(2):
            before = acceptance.at_depth(0)
            observe(acceptance, 1, 0, 1, [])
            moved.append(1 - acceptance.at_depth(0) / before)
            for _ in range(100):
                observe(acceptance, 5, 4, 5, [])
            for _ in range(4):  # short replies that say next to nothing
                acceptance.fade()
        assert moved[1] == pytest.approx(moved[0], rel=0.1)

    def test_replies_change_what_is_usual_in_the_long_run(self) -> None:
        acceptance, usual = Acceptance(), [1.0]
        for _ in range(12):
            for _ in range(50):
                observe(acceptance, 1, 0, 1, [])
            acceptance.fade()
            usual.append(acceptance.known()["depths"][0])
        assert usual == sorted(usual, reverse=True)
        assert usual[-1] < 0.15 < usual[3]

    def test_a_first_look_leaves_most_open(self) -> None:
        """Four looks' worth of a token like any other: one look says little, many say all."""
        acceptance = Acceptance()
        assert acceptance.looks() == []
        acceptance.look(0.99)
        sure, open_ = acceptance.looks()
        assert sure == (pytest.approx(1 / 5), acceptance.at_confidence(0.99))
        assert open_ == (pytest.approx(4 / 5), acceptance.at_depth(0))
        for _ in range(300):
            acceptance.look(0.99)
        sure, open_ = acceptance.looks()
        assert sure[0] + open_[0] == pytest.approx(1.0)
        assert open_[0] == pytest.approx(4 / 54, rel=0.02)
        acceptance.fade()
        assert acceptance.looks()[1][0] == pytest.approx(4 / 9, rel=0.02), "another text begins"

    def test_priors_of_another_shape_are_ignored(self) -> None:
        assert Acceptance({"bins": [0.1]}).at_confidence(0.99) == Acceptance().at_confidence(0.99)

    def test_doubting_keeps_the_estimate_and_opens_it(self) -> None:
        stubborn, doubted = Acceptance(), Acceptance()
        for acceptance in (stubborn, doubted):
            for _ in range(100):
                observe(acceptance, 1, 0, 1, [])
        before, usual = doubted.at_depth(0), doubted.known()["depths"][0]
        for _ in range(4):
            doubted.doubt()
        assert doubted.at_depth(0) == pytest.approx(before)
        assert doubted.known()["depths"][0] == pytest.approx(usual), "no reply has ended"
        for acceptance in (stubborn, doubted):
            for _ in range(4):
                observe(acceptance, 1, 1, 1, [])
        assert doubted.at_depth(0) > 0.35 > stubborn.at_depth(0)

    def test_doubting_keeps_what_is_known_of_a_confidence(self) -> None:
        acceptance = Acceptance()
        for number in range(100):
            observe(acceptance, 1, number % 2, 1, [0.5])
        before = acceptance.at_confidence(0.5)
        acceptance.doubt()
        assert acceptance.at_confidence(0.5) == pytest.approx(before, abs=0.01)

    def test_no_estimate_leaves_its_bounds(self) -> None:
        acceptance = Acceptance()
        for accepted, change in zip((0, 1, 0) * 20, ("doubt", "fade", "doubt") * 20, strict=True):
            for _ in range(30):
                observe(acceptance, 1, accepted, 1, [0.5])
            getattr(acceptance, change)()
            known = acceptance.known()
            assert all(0.0 <= rate <= 1.0 for rates in known.values() for rate in rates)
            assert 0.0 <= acceptance.at_depth(0) <= 1.0

    @pytest.mark.parametrize("accepted", [0, 1])
    def test_nor_where_it_is_doubted_again_and_again(self, accepted: int) -> None:
        """As of a drafter that is tried now and then in one long reply, always with one result."""
        acceptance = Acceptance()
        for _ in range(6):
            acceptance.doubt()
            for _ in range(8):
                observe(acceptance, 1, accepted, 1, [0.5])
                values = [acceptance.at_confidence(0.5), *acceptance.by_rank()]
                assert all(0.0 <= value <= 1.0 for value in (acceptance.at_depth(0), *values))

    def test_forgets(self) -> None:
        acceptance = Acceptance()
        for accepted in [0] * 200 + [1] * 150:
            observe(acceptance, 1, accepted, 1, [])
        assert acceptance.at_depth(0) > 0.9
