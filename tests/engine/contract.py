"""What every engine must do, written against `Engine` alone.

A test module for an engine provides three fixtures, scoped to the module, and a subclass:

* `make_engine`, a `MakeEngine`;
* `special_name`, the name of a control token in the engine's vocabulary, such as "<|im_end|>";
* `engine`, an engine out of `make_engine()`, shared by the tests to load only once.

Tokens are compared exactly, so the engine has to be set up to be as exact as it can.
"""

from tests.engine.contract_cache import DecodeContract, ShiftContract
from tests.engine.contract_expand import ExpandContract
from tests.engine.contract_sampling import SamplingContract


class EngineContract(ExpandContract, DecodeContract, ShiftContract, SamplingContract):
    """All of it: subclass this as `class TestXContract(EngineContract)`."""
