"""Shed plans: which rows of a grant are kept. One file for each kind of plan, one codec for all kinds."""

from penstock.grants.plans.chosen import ChosenPlan
from penstock.grants.plans.codec import plan_from_json
from penstock.grants.plans.coins import SCALE, grant_seed
from penstock.grants.plans.key import KeyPlan
from penstock.grants.plans.protocol import ShedPlan
from penstock.grants.plans.sample import KEEP_ALL, SamplePlan
from penstock.grants.plans.sampling import SAMPLINGS, Sampling, plan_for
from penstock.grants.plans.utility import UtilityPlan
from penstock.grants.plans.window import WindowPlan

__all__ = [
    "KEEP_ALL",
    "SAMPLINGS",
    "SCALE",
    "ChosenPlan",
    "KeyPlan",
    "SamplePlan",
    "Sampling",
    "ShedPlan",
    "UtilityPlan",
    "WindowPlan",
    "grant_seed",
    "plan_for",
    "plan_from_json",
]
