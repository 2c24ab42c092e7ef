import os
import socket
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.engine.llama.gguf import GGUFHeader, read_gguf
from runnerd.errors import BadModel, ModelMissing
from tests.engine.gguf_files import (
    ARCHITECTURE,
    F32,
    Q4_0,
    STRING,
    U32,
    GGUFFile,
    array,
    entry,
    number,
    string,
    tensor,
    text,
)
from tests.engine.llama_builders import MODEL

# Two tensors of 64 and 36 bytes, the second one at the next multiple of 32.
GOOD = GGUFFile(
    entries=(
        ARCHITECTURE,
        number("toy.context_length", 512),
        array("tokenizer.ggml.tokens", STRING, 3, string("a") + string("") + string("né")),
        array("toy.head_count_kv", U32, 2, struct.pack("<2I", 0, 4)),
    ),
    tensors=(tensor("first", (4, 4)), tensor("second", (32, 2), Q4_0, offset=64)),
    data=bytes(64 + 36),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "toy.gguf"


def read(path: Path, content: bytes) -> GGUFHeader:
    path.write_bytes(content)
    return read_gguf(str(path))


def test_a_header_is_read(path: Path) -> None:
    header = read(path, GOOD.to_bytes())
    assert (header.version, header.architecture, header.n_tensors) == (3, "toy", 2)
    assert header.size_bytes == len(GOOD.to_bytes())
    assert header.number("context_length") == 512
    assert header.metadata["toy.head_count_kv"] == (0, 4)


def test_version_2_is_read(path: Path) -> None:
    assert read(path, replace(GOOD, version=2).to_bytes()).version == 2


def test_what_is_long_is_passed_over(path: Path) -> None:
    entries = (
        text("long.text", "x" * (1 << 20) + "x"),
        array("long.array", F32, 1025, bytes(4 * 1025)),
        array("words", STRING, 2, string("a") + string("b")),
        ARCHITECTURE,
    )
    header = read(path, GGUFFile(entries).to_bytes())
    assert dict(header.metadata) == {"general.architecture": "toy"}


def test_bytes_after_the_last_tensor_do_no_harm(path: Path) -> None:
    assert read(path, GOOD.to_bytes() + b"junk").n_tensors == 2


def test_a_tensor_type_that_is_not_known_is_left_to_llama_cpp(path: Path) -> None:
    tensors = (tensor("odd", (1 << 40,), kind=250),)
    assert read(path, GGUFFile(tensors=tensors, data=bytes(32)).to_bytes()).n_tensors == 1


# --- damaged files -------------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", range(4, len(GOOD.to_bytes())))
def test_a_file_cut_anywhere_is_refused_with_its_size(path: Path, n_bytes: int) -> None:
    with pytest.raises(BadModel, match=rf"cut short.*file has {n_bytes}\b|of {n_bytes} bytes"):
        read(path, GOOD.to_bytes()[:n_bytes])


def test_a_file_cut_in_its_data_is_refused_with_the_expected_size_and_the_tensor(
    path: Path,
) -> None:
    whole = len(GOOD.to_bytes())
    message = f"tensor 'second'.* {whole} bytes expected, the file has {whole - 1}$"
    with pytest.raises(BadModel, match=message):
        read(path, GOOD.to_bytes()[:-1])


def test_a_file_that_is_far_longer_than_its_tensors_is_refused(path: Path) -> None:
    path.write_bytes(GOOD.to_bytes())
    os.truncate(path, len(GOOD.to_bytes()) + 2**30)  # a hole: it takes no room
    assert read_gguf(str(path)).n_tensors == 2
    os.truncate(path, len(GOOD.to_bytes()) + 2**30 + 1)
    with pytest.raises(BadModel, match="1073741825 bytes behind the last tensor"):
        read_gguf(str(path))


def test_an_empty_file_is_refused_as_empty(path: Path) -> None:
    with pytest.raises(BadModel, match="empty"):
        read(path, b"")


@pytest.mark.parametrize("content", [b"PK\x03\x04 and more", b"<!doctype html>", b"GG"])
def test_a_file_of_another_kind_is_shown_by_its_first_bytes(path: Path, content: bytes) -> None:
    with pytest.raises(BadModel) as caught:
        read(path, content)
    assert repr(content[:4]) in str(caught.value)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (replace(GOOD, version=1), "version 1,"),
        (replace(GOOD, version=4), "version 4,"),
        (replace(GOOD, version=3 << 24), "big-endian"),
        (replace(GOOD, n_tensors=1 << 63), f"{1 << 63} tensors do not fit"),
        (replace(GOOD, n_entries=(1 << 64) - 1), "metadata entries do not fit"),
        (replace(GOOD, n_tensors=3, data=b"\xff" * 99), "cut short in tensor 3 of 3"),
        (GGUFFile((number("a", 1),)), "no architecture"),
        (GGUFFile((number("general.architecture", 1),)), "no architecture"),
        (GGUFFile((number("a", 1), number("a", 1))), "'a' is there twice"),
        (GGUFFile((struct.pack("<Q", 1 << 40) + b"key" * 9,)), f"at least {(1 << 40) + 32} bytes"),
        (GGUFFile((string("k" * 70_000) + bytes(8),)), "name of more than 65536 bytes"),
        (GGUFFile((entry("a", STRING, struct.pack("<Q", 1 << 63)),)), "cut short.*'a'"),
        (GGUFFile((entry("a", 13, b"12345678"),)), "unknown value type 13"),
        (GGUFFile((array("a", 9, 1, bytes(32)),)), "unknown element type 9"),
        (GGUFFile((array("a", U32, 1 << 62, bytes(32)),)), "elements do not fit"),
        (GGUFFile((array("a", STRING, 1 << 61, bytes(32)),)), "strings do not fit"),
        (GGUFFile((array("a", STRING, 2, struct.pack("<QQ", 1 << 62, 0)),)), "cut short"),
        (GGUFFile((array("a", STRING, 1, struct.pack("<Q", 1 << 62)),)), "cut short"),
        (replace(GOOD, entries=(ARCHITECTURE, number("general.alignment", 0))), "alignment 0"),
        (replace(GOOD, entries=(ARCHITECTURE, number("general.alignment", 24))), "alignment 24"),
        (replace(GOOD, entries=(ARCHITECTURE, text("general.alignment", "x"))), "alignment 'x'"),
        (GGUFFile(tensors=(tensor("t", (1,) * 5),)), "5 dimensions"),
        (GGUFFile(tensors=(tensor("t", (1 << 63,) * 4),)), "cut short in tensor 't'"),
        (GGUFFile(tensors=(tensor("t", (1,), offset=(1 << 64) - 32),)), "cut short in tensor 't'"),
        (GGUFFile(tensors=(tensor("t", (1,), offset=8),)), "offset 8"),
        (GGUFFile(tensors=(tensor("t", (33,), Q4_0),)), "row of 33 values"),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused_in_words(
    path: Path, file: GGUFFile, message: str
) -> None:
    with pytest.raises(BadModel, match=message):
        read(path, file.to_bytes())


@given(
    patches=st.lists(
        st.tuples(
            st.integers(0, len(GOOD.to_bytes())),
            st.binary(min_size=1, max_size=2) | st.sampled_from((b"\xff" * 8, b"\0" * 8)),
        ),
        max_size=4,
    ),
    n_bytes=st.integers(0, len(GOOD.to_bytes()) * 2),
)
def test_no_damage_raises_anything_else_or_takes_much_memory(
    path: Path, patches: list[tuple[int, bytes]], n_bytes: int
) -> None:
    content = bytearray(GOOD.to_bytes())
    for at, patch in patches:
        content[at : at + len(patch)] = patch
    tracemalloc.start()
    try:
        read(path, bytes(content[:n_bytes])).kv_bytes_per_input()
    except BadModel:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20


# --- no file -------------------------------------------------------------------------------


def test_a_missing_file_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"none\.gguf: No such file or directory \(errno 2\)"):
        read_gguf(str(tmp_path / "none.gguf"))


def test_a_dangling_link_is_a_missing_file(tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "none.gguf")
    with pytest.raises(ModelMissing, match="No such file"):
        read_gguf(str(link))


def test_a_link_in_a_circle_is_named_as_such(tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(link)
    with pytest.raises(ModelMissing, match="symbolic links"):
        read_gguf(str(link))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(GOOD.to_bytes())
    path.chmod(0)
    with pytest.raises(ModelMissing, match="Permission denied"):
        read_gguf(str(path))


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="not a regular file"):
        read_gguf(str(tmp_path))


def test_a_fifo_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ModelMissing, match="not a regular file"):
        read_gguf(str(tmp_path / "fifo"))


def test_a_socket_is_no_model(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(ModelMissing, match="errno 6"):
            read_gguf(str(tmp_path / "socket"))


def test_a_device_is_no_model() -> None:
    with pytest.raises(ModelMissing, match="not a regular file"):
        read_gguf("/dev/zero")


def test_a_nul_in_the_path_does_not_open_the_path_before_it(path: Path) -> None:
    path.write_bytes(GOOD.to_bytes())
    with pytest.raises(ModelMissing, match="null byte"):
        read_gguf(f"{path}\0.gguf")


# --- the KV cache --------------------------------------------------------------------------

SIZES = {
    "block_count": 2,
    "embedding_length": 64,
    "attention.head_count": 8,
    "attention.head_count_kv": 4,
}


def header_of(path: Path, sizes: dict[str, int], *more: bytes) -> GGUFHeader:
    entries = [number(f"toy.{name}", size) for name, size in sizes.items()]
    return read(path, GGUFFile((ARCHITECTURE, *entries, *more)).to_bytes())


def test_a_cell_holds_a_key_and_a_value_per_layer_and_head(path: Path) -> None:
    assert header_of(path, SIZES).kv_bytes_per_input() == 2 * 4 * (8 + 8) * 2


def test_key_and_value_may_have_lengths_of_their_own(path: Path) -> None:
    sizes = SIZES | {"attention.key_length": 192, "attention.value_length": 128}
    assert header_of(path, sizes).kv_bytes_per_input() == 2 * 4 * (192 + 128) * 2


def test_heads_may_differ_from_layer_to_layer(path: Path) -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "attention.head_count_kv"}
    per_layer = array("toy.attention.head_count_kv", U32, 2, struct.pack("<2I", 0, 3))
    assert header_of(path, sizes, per_layer).kv_bytes_per_input() == 3 * (8 + 8) * 2


@pytest.mark.parametrize("gone", ["block_count", "embedding_length", "attention.head_count"])
def test_without_its_sizes_a_cell_is_of_unknown_size(path: Path, gone: str) -> None:
    sizes = {name: size for name, size in SIZES.items() if name != gone}
    assert header_of(path, sizes).kv_bytes_per_input() is None


def test_latent_attention_keeps_keys_alone_at_least(path: Path) -> None:
    sizes = SIZES | {"attention.kv_lora_rank": 16, "attention.key_length": 24}
    sizes |= {"attention.head_count_kv": 1, "attention.key_length_mla": 40}
    assert header_of(path, sizes).kv_bytes_per_input() == 2 * 24 * 2


def test_latent_attention_written_out_in_full_keeps_plain_keys_and_values(path: Path) -> None:
    sizes = SIZES | {"attention.kv_lora_rank": 16}
    assert header_of(path, sizes).kv_bytes_per_input() == 2 * 4 * (8 + 8) * 2


@pytest.mark.parametrize(("n_shared", "n_own"), [(0, 2), (1, 1), (2, 0), (9, 0)])
def test_layers_that_share_a_cache_have_none_of_their_own(
    path: Path, n_shared: int, n_own: int
) -> None:
    sizes = SIZES | {"attention.shared_kv_layers": n_shared}
    assert header_of(path, sizes).kv_bytes_per_input() == n_own * 4 * (8 + 8) * 2


def test_of_two_sizes_of_heads_the_smaller_counts(path: Path) -> None:
    sizes = SIZES | {"attention.key_length_swa": 4, "attention.value_length_swa": 16}
    assert header_of(path, sizes).kv_bytes_per_input() == 2 * 4 * (4 + 8) * 2


@pytest.mark.parametrize("name", ["full_attention_interval", "ssm.state_size"])
def test_where_layers_keep_something_else_a_cell_is_of_unknown_size(path: Path, name: str) -> None:
    assert header_of(path, SIZES | {name: 16}).kv_bytes_per_input() is None


@pytest.mark.parametrize("name", ["head_count", "head_count_kv"])
@pytest.mark.parametrize("each", [float("nan"), float("inf"), 1.0])
def test_heads_of_layers_that_are_no_whole_numbers_are_refused(
    path: Path, name: str, each: float
) -> None:
    heads = array(f"toy.attention.{name}", F32, 2, struct.pack("<2f", 1.0, each))
    with pytest.raises(BadModel, match=f"toy.attention.{name} is not made of whole numbers"):
        read(path, GGUFFile((ARCHITECTURE, heads)).to_bytes())


@pytest.mark.parametrize("n_layers", [0, 513, 2**32 - 1])
def test_a_number_of_layers_that_would_end_the_process_is_refused(
    path: Path, n_layers: int
) -> None:
    with pytest.raises(BadModel, match=f"{n_layers} layers, llama.cpp has 1 to 512"):
        header_of(path, SIZES | {"block_count": n_layers})


def test_without_a_pattern_any_layer_may_have_a_window(path: Path) -> None:
    assert header_of(path, SIZES).may_slide(0)


def test_a_period_leaves_every_nth_layer_without_a_window(path: Path) -> None:
    header = header_of(path, SIZES | {"attention.sliding_window_pattern": 3})
    assert [header.may_slide(layer) for layer in range(6)] == [True, True, False] * 2


def test_a_pattern_may_name_the_layers(path: Path) -> None:
    pattern = array("toy.attention.sliding_window_pattern", 7, 2, b"\0\1")
    assert [header_of(path, SIZES, pattern).may_slide(layer) for layer in range(3)] == [
        False,
        True,
        True,
    ]


def test_a_known_architecture_has_its_period_without_saying(path: Path) -> None:
    header = read(path, GGUFFile((text("general.architecture", "gemma3"),)).to_bytes())
    assert [header.may_slide(layer) for layer in (0, 4, 5, 6, 11)] == [
        True,
        True,
        False,
        True,
        False,
    ]


# --- a real file ---------------------------------------------------------------------------


@pytest.mark.skipif(MODEL is None, reason="the test model is not installed")
def test_a_real_model_is_read() -> None:
    header = read_gguf(MODEL or "")
    assert (header.architecture, header.n_tensors) == ("llama", 272)
    assert header.number("context_length") == 8192
    assert header.kv_bytes_per_input() == 30 * 3 * (64 + 64) * 2
