"""Parts of a user's own from which tests make theirs."""

import rlrun


class OneNumber(rlrun.ActionDistribution):
    """Has one number, which is the log probability of every action, the entropy and the divergence."""

    @classmethod
    def outputs(cls, space):
        return 1

    def mode(self):
        return self.sample(None)

    def log_prob(self, action):
        return self.numbers.squeeze(-1)

    def entropy(self):
        return self.numbers.squeeze(-1)

    def kl(self, other):
        return self.numbers.squeeze(-1)
