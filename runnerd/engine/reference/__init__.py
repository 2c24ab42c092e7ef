"""A small exact attention model in numpy: the oracle of the tests, and a model to try things on.

Everything is computed in whole numbers held in float64, so a result never depends on the order
of a sum: batched equals alone, cached equals recomputed, to the last bit.
"""

from runnerd.engine.reference.engine import ReferenceEngine
from runnerd.engine.reference.options import ReferenceOptions, parse_options

__all__ = ["ReferenceEngine", "ReferenceOptions", "parse_options"]
