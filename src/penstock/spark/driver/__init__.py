"""The part of Penstock that runs in the driver, beside a user's queries: `attach`, the agent, listeners."""
