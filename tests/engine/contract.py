"""What every engine must do, written against `Engine` alone.

A test module for an engine provides three fixtures, scoped to the module, and a subclass:

* `make_engine`, a `MakeEngine`;
* `special_name`, the name of a control token in the engine's vocabulary, such as "<|im_end|>";
* `engine`, an engine out of `make_engine()`, shared by the tests to load only once.

What depends on the model's layers or on the kind of cache is a contract of its own, for engines
of every kind; so are adapters, in `contract_adapters`, and images, in `contract_media`.

Tokens are compared exactly, so the engine has to be set up to be as exact as it can.
"""

from tests.engine.contract_abort import AbortContract
from tests.engine.contract_cache import DecodeContract, ShiftContract
from tests.engine.contract_checkpoints import CheckpointContract
from tests.engine.contract_copy import CopyContract
from tests.engine.contract_embed import EmbedContract
from tests.engine.contract_expand import ExpandContract
from tests.engine.contract_filters import FilterContract
from tests.engine.contract_grammar import GrammarContract
from tests.engine.contract_sampling import SamplingContract


class MemoryContract(
    DecodeContract, ShiftContract, CopyContract, CheckpointContract, AbortContract
):
    """What a slot knows: all that depends on the kind of model and of cache."""


class EngineContract(
    ExpandContract, MemoryContract, SamplingContract, FilterContract, GrammarContract, EmbedContract
):
    """All of it: subclass this as `class TestXContract(EngineContract)`."""
