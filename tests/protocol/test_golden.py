from typing import get_args

import pytest
from msgspec import msgpack

from runnerd_protocol.framing import FrameDecoder, encode_frame
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    ClientMessage,
    DaemonMessage,
    Delta,
    Detokenize,
    Failed,
    Finished,
    Generate,
    GetModel,
    GetStatus,
    Hello,
    Model,
    ProtocolError,
    Status,
    Subscribe,
    Text,
    TextPart,
    Timings,
    Tokenize,
    Tokens,
    TokensPart,
    Welcome,
)

# The bytes of version 1. A change here is a change of the protocol: clients hold it too.
GOLDEN: list[tuple[ClientMessage | DaemonMessage, str]] = [
    (
        Hello(1, 2, "demo"),
        "0000003284a474797065a568656c6c6fab6d696e5f76657273696f6e01ab6d61785f76657273696f6e02a663"
        "6c69656e74a464656d6f",
    ),
    (
        Generate(1, "hi"),
        "00000027de0003a474797065a867656e6572617465aa726571756573745f696401a670726f6d7074a26869",
    ),
    (
        Generate(
            2,
            [TextPart("<s>", special=True), TokensPart([1, 70000])],
            max_tokens=0,
            stop=["\n", "é"],
            temperature=0.0,
            top_k=1,
            top_p=0.5,
            min_p=0.25,
            repeat_penalty=1.5,
            frequency_penalty=-1.0,
            presence_penalty=2.0,
            penalty_last_n=0,
            seed=2**32 - 2,
            n_keep=-1,
            truncate=True,
            shift=True,
            return_tokens=True,
        ),
        "0000013dde0012a474797065a867656e6572617465aa726571756573745f696402a670726f6d70749283a474"
        "797065a474657874a474657874a33c733ea77370656369616cc382a474797065a6746f6b656e73a6746f6b65"
        "6e739201ce00011170aa6d61785f746f6b656e7300a473746f7092a10aa2c3a9ab74656d7065726174757265"
        "cb0000000000000000a5746f705f6b01a5746f705f70cb3fe0000000000000a56d696e5f70cb3fd000000000"
        "0000ae7265706561745f70656e616c7479cb3ff8000000000000b16672657175656e63795f70656e616c7479"
        "cbbff0000000000000b070726573656e63655f70656e616c7479cb4000000000000000ae70656e616c74795f"
        "6c6173745f6e00a473656564cefffffffea66e5f6b656570ffa87472756e63617465c3a57368696674c3ad72"
        "657475726e5f746f6b656e73c3",
    ),
    (
        Tokenize(2**63 - 1, "é", add_bos=False),
        "0000003684a474797065a8746f6b656e697a65aa726571756573745f6964cf7fffffffffffffffa670726f6d"
        "7074a2c3a9a76164645f626f73c2",
    ),
    (
        Detokenize(0, [0, 127, 128, 65536]),
        "0000002e83a474797065aa6465746f6b656e697a65aa726571756573745f696400a6746f6b656e7394007fcc"
        "80ce00010000",
    ),
    (
        Cancel(300),
        "0000001b82a474797065a663616e63656caa726571756573745f6964cd012c",
    ),
    (
        GetStatus(7),
        "0000001d82a474797065aa6765745f737461747573aa726571756573745f696407",
    ),
    (
        Subscribe(8, 0.25),
        "0000003083a474797065a9737562736372696265aa726571756573745f696408aa696e74657276616c5f73cb"
        "3fd0000000000000",
    ),
    (
        GetModel(9),
        "0000001c82a474797065a96765745f6d6f64656caa726571756573745f696409",
    ),
    (
        ProtocolError("bad_message", "what?", fatal=False, details={"declared": 5, "limit": None}),
        "0000005585a474797065ae70726f746f636f6c5f6572726f72a4636f6465ab6261645f6d657373616765a76d"
        "657373616765a5776861743fa5666174616cc2a764657461696c7382a86465636c6172656405a56c696d6974"
        "c0",
    ),
    (
        Welcome(1, 16777216, "runnerd 0.1.0"),
        "0000004184a474797065a777656c636f6d65a776657273696f6e01af6d61785f6672616d655f6279746573ce"
        "01000000a6736572766572ad72756e6e65726420302e312e30",
    ),
    (
        Accepted(1),
        "0000001b82a474797065a86163636570746564aa726571756573745f696401",
    ),
    (
        Accepted(1, n_ahead=3, state="loading", load_fraction=0.5),
        "0000004985a474797065a86163636570746564aa726571756573745f696401a76e5f616865616403a5737461"
        "7465a76c6f6164696e67ad6c6f61645f6672616374696f6ecb3fe0000000000000",
    ),
    (
        Delta(1, "Hé"),
        "0000002183a474797065a564656c7461aa726571756573745f696401a474657874a348c3a9",
    ),
    (
        Delta(1, "", n_tokens=0, tokens=[5, 6]),
        "0000003285a474797065a564656c7461aa726571756573745f696401a474657874a0a86e5f746f6b656e7300"
        "a6746f6b656e73920506",
    ),
    (
        Finished(1, "stop"),
        "0000002783a474797065a866696e6973686564aa726571756573745f696401a6726561736f6ea473746f70",
    ),
    (
        Finished(
            1,
            "stop_sequence",
            stop_sequence="\n",
            n_prompt=10,
            n_cached=4,
            n_generated=200,
            n_text_bytes=70000,
            n_keep=1,
            n_truncated=2,
            n_shifts=1,
            n_shifted=9,
            seed=7,
            timings=Timings(1.0, 2.0, 0.5, 0.75, 4.0),
        ),
        "0000010a8ea474797065a866696e6973686564aa726571756573745f696401a6726561736f6ead73746f705f"
        "73657175656e6365ad73746f705f73657175656e6365a10aa86e5f70726f6d70740aa86e5f63616368656404"
        "ab6e5f67656e657261746564ccc8ac6e5f746578745f6279746573ce00011170a66e5f6b65657001ab6e5f74"
        "72756e636174656402a86e5f73686966747301a96e5f7368696674656409a47365656407a774696d696e6773"
        "85a871756575655f6d73cb3ff0000000000000a7747466745f6d73cb4000000000000000aa69746c5f703530"
        "5f6d73cb3fe0000000000000aa69746c5f7039355f6d73cb3fe8000000000000a8746f74616c5f6d73cb4010"
        "000000000000",
    ),
    (
        Failed(1, "overloaded", "the queue is full", retryable=True, details={"n_waiting": 8}),
        "0000006286a474797065a66661696c6564aa726571756573745f696401a4636f6465aa6f7665726c6f616465"
        "64a76d657373616765b17468652071756575652069732066756c6ca9726574727961626c65c3a76465746169"
        "6c7381a96e5f77616974696e6708",
    ),
    (
        Tokens(2, [1, 2, 3]),
        "0000002483a474797065a6746f6b656e73aa726571756573745f696402a6746f6b656e7393010203",
    ),
    (
        Text(3, "abc"),
        "0000002083a474797065a474657874aa726571756573745f696403a474657874a3616263",
    ),
    (
        Status(7, "ready", last=True, n_slots=4, tokens_per_s=12.5),
        "0000004cde0006a474797065a6737461747573aa726571756573745f696407a57374617465a57265616479a4"
        "6c617374c3a76e5f736c6f747304ac746f6b656e735f7065725f73cb4029000000000000",
    ),
    (
        Model(9, "tiny", 259, 64, 128, bos_token=256, end_tokens=[257]),
        "0000005e88a474797065a56d6f64656caa726571756573745f696409a46e616d65a474696e79a76e5f766f63"
        "6162cd0103a56e5f63747840ab6e5f6374785f747261696ecc80a9626f735f746f6b656ecd0100aa656e645f"
        "746f6b656e7391cd0101",
    ),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN)
def test_a_message_becomes_the_bytes_of_version_1(
    message: ClientMessage | DaemonMessage, golden: str
) -> None:
    assert encode_frame(message).hex() == golden


@pytest.mark.parametrize(("message", "golden"), GOLDEN)
def test_the_bytes_of_version_1_become_the_message(
    message: ClientMessage | DaemonMessage, golden: str
) -> None:
    (payload,) = FrameDecoder().feed(bytes.fromhex(golden))
    union = ClientMessage if isinstance(message, ClientMessage) else DaemonMessage
    assert msgpack.decode(payload, type=union) == message


def test_every_message_has_golden_bytes() -> None:
    kinds = {type(message) for message, _ in GOLDEN}
    assert kinds == {*get_args(ClientMessage), *get_args(DaemonMessage)}
