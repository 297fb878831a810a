"""What trials hold of the cluster that were ended while their workers started."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from raygnn.runtime.ray_internals import attribute, internal

#: Controllers end some seconds after their trials.
_WITHIN_S = 30.0


def held_places() -> dict[str, bool]:
    """The placement groups that actors of this job hold: id, and whether that actor is dead."""
    table = internal("ray.core.generated.gcs_pb2", "PlacementGroupTableData")
    state = internal("ray._private.state", "state")
    accessor = attribute(state, "_connect_and_get_accessor")()
    job = ray.get_runtime_context().get_job_id()
    found: dict[str, Any] = {}
    for record in map(table.FromString, attribute(accessor, "get_placement_group_table")()):
        is_held = record.state != table.REMOVED and not record.is_detached
        if is_held and record.creator_actor_id and record.creator_job_id.hex() == job:
            found[record.placement_group_id.hex()] = record.creator_actor_dead
    return found


def free_places_of_trials(before: dict[str, bool]) -> None:
    """Frees what trials have left behind of their workers, as soon as their controllers are dead.

    Ray does so for workers that have started: Ray Train tells its cleaner of a placement group only
    then, and one that it does not know of stays until this process leaves the cluster.

    Args:
        before: what was held when the sweep began.
    """
    end_s = time.monotonic() + _WITHIN_S
    while time.monotonic() < end_s:
        held = {place: is_dead for place, is_dead in held_places().items() if place not in before}
        if not held:
            return
        for place, is_dead in held.items():
            if is_dead:
                remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(place)))
        time.sleep(0.2)
