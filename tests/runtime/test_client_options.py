from typing import get_type_hints

from runnerd.client import ChatOptions, GenerateOptions
from runnerd_protocol.messages import Generate

MORE = {"on_progress"}
WIDER = {"json_schema", "adapters"}  # may also be dicts


def test_the_options_are_the_fields_of_generate() -> None:
    fields = {*get_type_hints(Generate)} - {"request_id", "prompt"}
    assert {*get_type_hints(GenerateOptions)} == fields | MORE
    assert {*get_type_hints(ChatOptions)} == fields | MORE | {"tools", "variables"}


def test_an_option_has_the_type_of_its_field() -> None:
    fields, options = get_type_hints(Generate), get_type_hints(GenerateOptions)
    for name in options.keys() - MORE - WIDER:
        assert options[name] == fields[name], name


def test_no_option_has_to_be_given() -> None:
    assert not ChatOptions.__required_keys__
