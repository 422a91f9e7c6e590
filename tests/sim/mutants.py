"""Known mistakes, each switched on by name: the simulation must notice every one.

Some that it does not reach in 2,000 worlds have tests of their own: in `tests/unit/test_raft.py` an
acknowledgement of an older term that is counted, and an admission that outlives its entry; in
`tests/sim/test_merge.py` a copy that was set aside and is read on, since the node then copies from
another what such a copy lacks; in `tests/sim/test_archiving.py` archived files that are emptied
before this node has a snapshot covering them, since it then continues with another node's state.
In `tests/integration/test_session_ends.py`, a report of what was held before a reset counts for
nothing. In `tests/integration/test_raft_members.py`: a snapshot with an undecided configuration,
and an earlier copy of a member that is promoted again; in
`tests/integration/test_cluster_members.py` a removed member that is not sent its removal. In
`tests/unit/test_scrub.py`, a file that is known to be damaged is served no more.
`tests/integration/test_node_duties.py` tests that a planned snapshot is dropped before a file it
covers is set aside, and that an order is proposed in no later term than
its own.

A mistake here that worlds show too rarely names the test that notices it: see `noticed_by`.
"""

from . import (
    mutants_archive,
    mutants_frames,
    mutants_full,
    mutants_level,
    mutants_loop,
    mutants_members,
    mutants_merge,
    mutants_node,
    mutants_outsider,
    mutants_pulled,
    mutants_raft,
    mutants_reading,
    mutants_rest,
    mutants_scrub,
    mutants_sealed,
    mutants_session,
    mutants_shared,
    mutants_sites,
    mutants_state,
)
from .mutants_full import FILLING
from .mutants_level import LEVELLING
from .mutants_loop import LOOPING
from .mutants_members import CHANGING
from .mutants_merge import MERGING
from .mutants_node import RESTORING
from .mutants_pulled import PULLING
from .mutants_reading import READING
from .mutants_rest import RESTING
from .mutants_scrub import SCRUBBING
from .mutants_sealed import SEALING
from .mutants_shared import SHARING
from .mutants_sites import SITING
from .mutation import MUTANTS, switched_on

__all__ = [
    "CHANGING",
    "FILLING",
    "LEVELLING",
    "LOOPING",
    "MERGING",
    "MUTANTS",
    "PULLING",
    "READING",
    "RESTING",
    "RESTORING",
    "SCRUBBING",
    "SEALING",
    "SHARING",
    "SITING",
    "mutants_archive",
    "mutants_frames",
    "mutants_full",
    "mutants_level",
    "mutants_loop",
    "mutants_members",
    "mutants_merge",
    "mutants_node",
    "mutants_outsider",
    "mutants_pulled",
    "mutants_raft",
    "mutants_reading",
    "mutants_rest",
    "mutants_scrub",
    "mutants_sealed",
    "mutants_session",
    "mutants_shared",
    "mutants_sites",
    "mutants_state",
    "switched_on",
]  # fmt: skip
