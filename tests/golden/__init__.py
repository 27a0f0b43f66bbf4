"""Golden traces: what crossed the planner's edge in scenarios on the virtual cluster when it was recorded."""
