"""From a configuration to a plan: what a run will do, decided before Spark starts."""

from icestream.plan.describe import describe, render_text
from icestream.plan.plan import Batching, PipelinePlan, Plan, PlannedFeature, RestartPolicy
from icestream.plan.planner import build, refuse_planned

__all__ = [
    "Batching",
    "PipelinePlan",
    "Plan",
    "PlannedFeature",
    "RestartPolicy",
    "build",
    "describe",
    "refuse_planned",
    "render_text",
]
