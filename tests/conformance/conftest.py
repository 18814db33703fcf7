"""The handlers of the scenes of batching, as fixtures."""

from batching.scene_fixtures import *  # noqa: F403
