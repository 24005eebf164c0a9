"""The policy: checked when a plan is approved, and again by the daemon for every query."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from regulator_kit import COMPANY, GROUPS, Regulator, fill_vault

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.base.errors import BudgetExceeded, DataError, PolicyRefused
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.declarations import Declaration
from isonomy.common.privacy.queries import Query, pack_positions
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.wire.messages import Refusal
from isonomy.regulator.config.policy import Policy
from isonomy.regulator.serving.daemon import Daemon


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    return Regulator.create(tmp_path)


def refused(regulator: Regulator, plan: Path, *words: str, code: int = 51) -> None:
    done = regulator.run("approve", plan, "--yes", "--json")
    assert done.code == code, done.stderr
    for word in words:
        assert word in done.json["error"]["text"]
    assert Approvals(regulator.config.plans_folder).hashes() == []
    assert not list(regulator.config.plans_folder.glob("*"))


class TestApproval:
    def test_it_reads_in_plain_language_and_sets_the_budget_aside(
        self, regulator: Regulator
    ) -> None:
        done = regulator.run("approve", regulator.plan_file(), "--yes", "--json")
        assert done.code == 0, done.stderr
        assert "lets acme ask" in done.stderr
        assert "63 % instead of 50 %" in done.stderr
        assert fingerprint(COMPANY.card()) in done.stderr
        assert done.json["schema"] == "isonomy-regulator/approve/v1"
        assert done.json["epsilon_set_aside"] == pytest.approx(0.5, abs=1e-6)
        (plan,) = verify_ledger(regulator.config.ledger_path).plans()
        assert plan.plan.hex() == done.json["approved"]
        assert (plan.people, plan.is_open) == (40, True)

    def test_without_a_yes_nothing_happens(
        self, regulator: Regulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        assert regulator.run("approve", regulator.plan_file()).code == 74
        assert not regulator.config.ledger_path.exists()

    def test_each_rule(self, regulator: Regulator) -> None:
        refused(regulator, regulator.plan_file(strategy="guess"), "strategy 'guess'")
        refused(regulator, regulator.plan_file(notion="envy"), "notion 'envy'")
        refused(regulator, regulator.plan_file(delta="1e-3"), "δ = 1e-3")
        regulator.change('epsilon_per_run = "2"', 'epsilon_per_run = "0.4"')
        refused(regulator, regulator.plan_file(), "0.4 of one run")
        regulator.change('inspection_rate = "0"', 'inspection_rate = "0.05"')
        refused(regulator, regulator.plan_file(epsilon="0.1"), "0.05 of the queries inspected")
        regulator.change('inspection_rate = "0.05"', 'inspection_rate = "0"')
        regulator.change('auditor = ""', f'auditor = "{"a" * 64}"')
        refused(regulator, regulator.plan_file(epsilon="0.1"), "another auditor")

    def test_who_may_ask(self, regulator: Regulator) -> None:
        stranger = PartyKeys.generate("acme", "company")
        allowed = fingerprint(stranger.card())
        regulator.change("companies = []", f'companies = ["{allowed}"]')
        refused(regulator, regulator.plan_file(), "acme may not ask")
        plan = regulator.plan_file(company=stranger)
        assert regulator.run("approve", plan, "--yes").code == 0

    def test_the_total_holds_over_all_plans(self, regulator: Regulator) -> None:
        regulator.approve(regulator.plan_file(name="one", epsilon="1.5"))
        done = regulator.run("approve", regulator.plan_file(name="two", epsilon="1.9"), "--yes")
        assert done.code == 51
        assert "above the total of 2" in done.stderr
        assert len(verify_ledger(regulator.config.ledger_path).plans()) == 1
        assert len(Approvals(regulator.config.plans_folder).hashes()) == 1

    def test_a_total_that_was_lowered_is_heeded(self, regulator: Regulator) -> None:
        regulator.approve(regulator.plan_file(name="one", epsilon="0.5"))
        regulator.change('epsilon = "2"\ndelta', 'epsilon = "0.6"\ndelta')
        done = regulator.run("approve", regulator.plan_file(name="two", epsilon="0.5"), "--yes")
        assert done.code == 51
        assert "above the total of 0.6" in done.stderr

    def test_a_cohort_with_a_tighter_total(self, regulator: Regulator) -> None:
        fill_vault(regulator.config, {"kid-1": "male", "kid-2": "female"}, GROUPS, "minors")
        path = regulator.home / "regulator.toml"
        path.write_text(path.read_text() + '\n[cohorts.minors]\nepsilon = "0.2"\n')
        adults = list(Regulator.people(40))
        assert regulator.run("approve", regulator.plan_file(adults), "--yes").code == 0
        done = regulator.run(
            "approve", regulator.plan_file([*adults, "kid-1"], name="mixed"), "--yes"
        )
        assert done.code == 51
        assert "cohort 'minors'" in done.stderr
        assert "kid-1" not in done.stderr

    def test_a_total_for_a_cohort_that_nobody_is_in_is_a_slip(self, regulator: Regulator) -> None:
        """`minor` for `minors`: skipped, it would leave the minors without their total."""
        fill_vault(regulator.config, {"kid-1": "male", "kid-2": "female"}, GROUPS, "minors")
        path = regulator.home / "regulator.toml"
        path.write_text(path.read_text() + '\n[cohorts.minor]\nepsilon = "0.2"\n')
        plan = regulator.plan_file([*Regulator.people(40), "kid-1"])
        refused(regulator, plan, "[cohorts.minor]", "nobody is enrolled", code=10)
        doctor = regulator.run("doctor", "--json")
        (found,) = [own for own in doctor.json["findings"] if own["check"] == "cohorts"]
        assert (found["level"], doctor.code) == ("fail", 73)
        regulator.change("[cohorts.minor]", "[cohorts.minors]")
        refused(regulator, plan, "cohort 'minors'")
        doctor = regulator.run("doctor", "--json")
        (found,) = [own for own in doctor.json["findings"] if own["check"] == "cohorts"]
        assert found["level"] == "ok"

    def test_people_who_are_not_enrolled_are_counted_never_named(
        self, regulator: Regulator
    ) -> None:
        done = regulator.run("approve", regulator.plan_file([*regulator.people(9), "zoe"]), "--yes")
        assert done.code == 12
        assert "1 of 10 people" in done.stderr
        assert "zoe" not in done.stderr
        assert Approvals(regulator.config.plans_folder).hashes() == []

    def test_groups_other_than_declared_are_refused(self, regulator: Regulator) -> None:
        for code, groups in ((51, {"sex": ["male", "female"]}), (10, {"race": ["x", "y"]})):
            done = regulator.run("approve", regulator.plan_file(groups=groups), "--yes")
            assert done.code == code
            assert "declares" in done.stderr
        plan = regulator.plan_file(groups={"sex": ["male", "female"]})
        assert regulator.run("approve", plan).code == 51  # nobody is there to answer a question

    def test_a_plan_for_another_regulator_is_refused(
        self, regulator: Regulator, tmp_path: Path
    ) -> None:
        other = Regulator.create(tmp_path / "other")
        done = regulator.run("approve", other.plan_file(), "--yes")
        assert done.code == 10
        assert "other keys than ours" in done.stderr


class TestRejection:
    def test_a_signed_no(self, regulator: Regulator) -> None:
        plan = regulator.plan_file()
        done = regulator.run("reject", plan, "--reason", "too much", "--yes", "--json")
        assert done.code == 0, done.stderr
        assert "too much" in Path(done.json["record"]).read_text()
        assert regulator.run("approve", plan, "--yes").code == 0  # one may think again

    def test_a_withdrawn_approval_gives_the_rest_back_and_stays_closed(
        self, regulator: Regulator
    ) -> None:
        plan = regulator.plan_file(epsilon="1.5")
        regulator.approve(plan)
        prefix = regulator.plan(epsilon="1.5")[0].hash.hex()[:10]
        assert regulator.run("reject", prefix, "--yes").code == 0
        (closed,) = verify_ledger(regulator.config.ledger_path).plans()
        assert not closed.is_open
        assert not list(regulator.config.plans_folder.glob("*.people"))
        done = regulator.run("approve", plan, "--yes")
        assert done.code == 51
        assert "was closed" in done.stderr
        regulator.approve(regulator.plan_file(name="next", epsilon="1.5"))

    def test_what_is_no_plan(self, regulator: Regulator) -> None:
        for text in ("abc", "0123456789abcdef", "regulator.toml"):
            assert regulator.run("reject", text, "--yes").code == 10


def query(plan: bytes, **changes: object) -> Query:
    asked = Query(
        query_id=f"{plan.hex()[:16]}-000001",
        plan=plan,
        purpose="counts",
        kind="open",
        shape="groups",
        attributes=("sex",),
        columns=1,
        mechanism="gaussian",
        noise=1 << 26,
        norm=1.0,
        declaration=Declaration(strategy="tilt", notion="demographic_parity"),
    )
    return replace(asked, **changes)


class TestQueries:
    @pytest.fixture
    def daemon(self, regulator: Regulator) -> Daemon:
        """A daemon whose policy was tightened after the approval."""
        regulator.approve(regulator.plan_file())
        regulator.change('epsilon_per_query = "2"', 'epsilon_per_query = "0.1"')
        regulator.change("queries_per_run = 100000", "queries_per_run = 2")
        return Daemon(regulator.config, regulator.vault)

    def custodian(self, daemon: Daemon, regulator: Regulator) -> tuple[Custodian, bytes]:
        plan = regulator.plan()[0].hash
        return daemon.plans.half(plan)._custodian, plan

    def test_one_within_the_policy_is_answered(self, daemon: Daemon, regulator: Regulator) -> None:
        with daemon:
            custodian, plan = self.custodian(daemon, regulator)
            assert custodian.authorise(query(plan)).shapes.units > 0

    def test_one_that_costs_too_much_is_refused(self, daemon: Daemon, regulator: Regulator) -> None:
        with daemon:
            custodian, plan = self.custodian(daemon, regulator)
            with pytest.raises(PolicyRefused, match=r"allows 0\.1 per query") as caught:
                custodian.authorise(query(plan, noise=1 << 22))
        told = Refusal.of("q", caught.value)  # and the company is told why
        assert "0.1 per query" in told.text
        assert isinstance(told.error(), PolicyRefused)

    @pytest.mark.parametrize(
        ("kind", "shape"), [("open", "groups"), ("blind", "groups"), ("blind", "weighted")]
    )
    def test_one_about_few_people_is_refused(
        self, daemon: Daemon, regulator: Regulator, kind: str, shape: str
    ) -> None:
        """Blind or open, the company learns the same; a weight of 1 and 0 is a group's sum."""
        weights = (1.0, 0.0) if shape == "weighted" else ()
        with daemon:
            custodian, plan = self.custodian(daemon, regulator)
            asked = query(plan, kind=kind, shape=shape, weights=weights)
            with pytest.raises(PolicyRefused, match=r"9 people.*at least 10"):
                custodian.authorise(replace(asked, positions=pack_positions(range(9))))
            custodian.authorise(replace(asked, positions=pack_positions(range(10))))

    def test_only_so_many_per_run(self, daemon: Daemon, regulator: Regulator) -> None:
        with daemon:
            custodian, plan = self.custodian(daemon, regulator)
            for number in (1, 2):
                asked = query(plan, query_id=f"{plan.hex()[:16]}-{number:06d}")
                sums = custodian.authorise(asked).codes[0][:1].reshape(1, 1)
                custodian.release(custodian.authorise(asked), bytes([number] * 32), sums)
            with pytest.raises(PolicyRefused, match="2 queries per run"):
                custodian.authorise(query(plan, query_id=f"{plan.hex()[:16]}-000003"))

    def test_a_forbidden_kind(self) -> None:
        policy = Policy(kinds=("blind",))
        with pytest.raises(PolicyRefused, match="no open queries"):
            policy.check_query(query(bytes(32)), 1, people=100, answered=0, delta="1e-6")

    @pytest.mark.parametrize(
        ("strategy", "notion", "word"),
        [("pf_ld", "equal_fpr", "no pf_ld"), ("tilt", "equal_fpr+accuracy_parity", "accuracy")],
    )
    def test_a_strategy_or_notion_that_it_does_not_name(
        self, strategy: str, notion: str, word: str
    ) -> None:
        policy = Policy(strategies=("tilt",), notions=("equal_fpr",))
        asked = query(bytes(32), declaration=Declaration(strategy=strategy, notion=notion))
        with pytest.raises(PolicyRefused, match=word):
            policy.check_query(asked, 1, people=100, answered=0, delta="1e-6")

    def test_the_plans_budget_stands_behind_it(self, daemon: Daemon, regulator: Regulator) -> None:
        with daemon:
            custodian, plan = self.custodian(daemon, regulator)
            custodian.limits = None
            with pytest.raises(BudgetExceeded) as caught:
                custodian.authorise(query(plan, noise=1 << 20))
            assert not isinstance(caught.value, PolicyRefused)
        assert units_for(0.5, 1e-6) > 0

    def test_people_who_left_the_vault_are_not_answered_about(self, regulator: Regulator) -> None:
        regulator.approve(regulator.plan_file())
        table = regulator.vault.read()
        gone = table.in_cohort("everybody") & False
        gone[3] = True
        regulator.vault.write(table.without(gone))
        with (
            Daemon(regulator.config, regulator.vault) as daemon,
            pytest.raises(DataError, match="1 of 40 people"),
        ):
            daemon.plans.half(regulator.plan()[0].hash)
