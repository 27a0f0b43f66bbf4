"""Redistribution: every few load-management cycles a capacity policy divides the capacity anew (DILoS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.control.tuning import LEAST_SHARE
from penstock.policies.capacity import CapacityPolicy, ClassUse
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import QueryClass

_CLOSE = 1e-6
"""By so much of the capacity the sum of new shares may differ from the sum of the old shares: rounding."""


class Redistribution:
    """The shares of the classes, and the policy that changes them.

    Args:
        policy: Divides the capacity.
        classes: The classes that share the capacity.
        every: Load-management cycles in a capacity redistribution cycle (CRC); 10 in pham2016 6.2.1.
    """

    def __init__(self, policy: CapacityPolicy, classes: Sequence[QueryClass], every: int = 10) -> None:
        if every < 1:
            raise InvalidInputError("a redistribution comes every 1 or more cycles", every, "10 is usual")
        self.policy, self._classes, self._every = policy, {cls.name: cls for cls in classes}, every
        self.shares = self.originals
        """By class, its part of the capacity; the parts add up to one."""
        self.claims = self.originals
        """By class, the part that it may have at once if it needs it: at least its original share, unless the
        class went short of that share at the last redistribution."""
        self._reports: dict[str, list[float]] = {name: [] for name in self._classes}
        self._cycles = 0

    def change(self, cls: QueryClass) -> None:
        """Takes in that a class has another priority or limits. They count from the next redistribution."""
        self._classes[cls.name] = cls

    def remove(self, name: str) -> dict[str, float]:
        """Takes a class out. Until the next redistribution, the capacity is divided by priority.

        Returns:
            By remaining class, the factor by which its claim has changed.
        """
        before = self.claims
        del self._classes[name], self._reports[name]
        self.shares = self.claims = self.originals
        return {n: claim / max(before[n], LEAST_SHARE) for n, claim in self.claims.items()}

    @property
    def originals(self) -> dict[str, float]:
        """By class, the part of the capacity that its priority gives."""
        weight = sum(cls.priority for cls in self._classes.values())
        return {name: cls.priority / weight for name, cls in self._classes.items()}

    def report(self, usages: Mapping[str, float | None]) -> dict[str, float] | None:
        """Ends a load-management cycle, and redistributes the capacity if enough cycles have passed.

        A class counts with its latest usage or its mean usage since the last redistribution, whichever is
        larger. In a burst a class has its share back at once; a lull must last before capacity is lent.

        Args:
            usages: By class u_k, its load over its capacity; `None` where that is not known yet.

        Returns:
            By class, the factor by which its share has changed; `None` without a redistribution.

        Raises:
            InvalidInputError: The policy's shares cannot be. The classes keep the shares that they have.
        """
        for name, usage in usages.items():
            if usage is not None:
                self._reports[name].append(usage)
        self._cycles += 1
        if self._cycles % self._every:
            return None
        uses = [self._use(name) for name in self._classes]
        for reports in self._reports.values():
            reports.clear()
        new = _checked(self.policy.redistribute(uses), uses)
        scales = {
            name: max(new[name], LEAST_SHARE) / max(self.shares[name], LEAST_SHARE) for name in self._classes
        }
        self.shares, originals = new, self.originals
        # a class may claim what it has lent; it may not claim what it wanted and did not get
        self.claims = {
            use.name: new[use.name] if use.load > new[use.name] else max(new[use.name], originals[use.name])
            for use in uses
        }
        return scales

    def _use(self, name: str) -> ClassUse:
        cls, share, reports = self._classes[name], self.shares[name], self._reports[name]
        if reports:
            load = max(reports[-1], sum(reports) / len(reports)) * max(share, LEAST_SHARE)
        else:  # the load is not known: the class counts as if it needed its original share
            load = max(share, self.originals[name])
        return ClassUse(
            name,
            cls.priority,
            share,
            load,
            cls.lendable_fraction,
            cls.borrow_limit_fraction,
        )


def _checked(new: Mapping[str, float], uses: Sequence[ClassUse]) -> dict[str, float]:
    """The new shares, as they are. NaN fails every comparison, so rules are stated as what must hold."""
    names, total = {use.name for use in uses}, sum(use.share for use in uses)
    if new.keys() != names:
        raise InvalidInputError(
            f"a capacity policy gives shares to {', '.join(sorted(names))}",
            ", ".join(map(str, new)),
            "give each class one share",
        )
    for name, share in new.items():
        if not share >= 0.0:
            raise InvalidInputError(f"the share of class {name} is at least 0", share, "0 if it has none")
    if not abs(sum(new.values()) - total) <= _CLOSE * total:
        raise InvalidInputError(
            f"the new shares add up to the old ones, {total:g}",
            sum(new.values()),
            "divide what the classes have",
        )
    return dict(new)
