from typing import get_args

import pytest
from msgspec import msgpack

from runnerd_protocol.framing import FrameDecoder, encode_frame
from runnerd_protocol.messages import (
    Accepted,
    Adapter,
    Cancel,
    Choice,
    ClientMessage,
    DaemonMessage,
    Delta,
    Detokenize,
    Embed,
    Embeddings,
    Failed,
    Finished,
    Generate,
    GetModel,
    GetStatus,
    Hello,
    Media,
    MediaPart,
    MediaWanted,
    Model,
    PromptProgress,
    ProtocolError,
    Status,
    Subscribe,
    Text,
    TextPart,
    Timings,
    Tokenize,
    TokenLogprobs,
    Tokens,
    TokensPart,
    TopLogprob,
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
        Generate(
            3,
            "hi",
            dynatemp_range=0.5,
            dynatemp_exponent=2.0,
            typical_p=0.5,
            top_n_sigma=1.0,
            xtc_probability=0.5,
            xtc_threshold=0.25,
            dry_multiplier=1.0,
            dry_base=2.0,
            dry_allowed_length=3,
            dry_last_n=0,
            dry_breakers=("\n",),
            mirostat=2,
            mirostat_tau=4.0,
            mirostat_eta=0.5,
            logit_bias={5: -1000.0, 70000: 1.5},
            ignore_end=True,
            logprobs=0,
            grammar='root ::= "x"',
            json_schema="{}",
            adapters=[Adapter("tone"), Adapter("style", 0.5)],
            cache_scope="tenant",
            n=2,
            priority="high",
            queue_timeout_s=1.0,
            timeout_s=60.0,
            return_progress=True,
        ),
        "00000231de001da474797065a867656e6572617465aa726571756573745f696403a670726f6d7074a26869ae"
        "64796e6174656d705f72616e6765cb3fe0000000000000b164796e6174656d705f6578706f6e656e74cb4000"
        "000000000000a97479706963616c5f70cb3fe0000000000000ab746f705f6e5f7369676d61cb3ff000000000"
        "0000af7874635f70726f626162696c697479cb3fe0000000000000ad7874635f7468726573686f6c64cb3fd0"
        "000000000000ae6472795f6d756c7469706c696572cb3ff0000000000000a86472795f62617365cb40000000"
        "00000000b26472795f616c6c6f7765645f6c656e67746803aa6472795f6c6173745f6e00ac6472795f627265"
        "616b65727391a10aa86d69726f7374617402ac6d69726f737461745f746175cb4010000000000000ac6d6972"
        "6f737461745f657461cb3fe0000000000000aa6c6f6769745f626961738205cbc08f400000000000ce000111"
        "70cb3ff8000000000000aa69676e6f72655f656e64c3a86c6f6770726f627300a76772616d6d6172ac726f6f"
        "74203a3a3d20227822ab6a736f6e5f736368656d61a27b7da861646170746572739281a46e616d65a4746f6e"
        "6582a46e616d65a57374796c65a57363616c65cb3fe0000000000000ab63616368655f73636f7065a674656e"
        "616e74a16e02a87072696f72697479a468696768af71756575655f74696d656f75745f73cb3ff00000000000"
        "00a974696d656f75745f73cb404e000000000000af72657475726e5f70726f6772657373c3",
    ),
    (
        Generate(
            6,
            [
                TextPart("What is this?"),
                MediaPart(b"BM\x00"),
                MediaPart(sha256=bytes(range(32))),
                MediaPart(b"GIF89a", bytes(32)),
            ],
        ),
        "000000d0de0003a474797065a867656e6572617465aa726571756573745f696406a670726f6d70749482a474"
        "797065a474657874a474657874ad5768617420697320746869733f82a474797065a56d65646961a464617461"
        "c403424d0082a474797065a56d65646961a6736861323536c420000102030405060708090a0b0c0d0e0f1011"
        "12131415161718191a1b1c1d1e1f83a474797065a56d65646961a464617461c406474946383961a673686132"
        "3536c4200000000000000000000000000000000000000000000000000000000000000000",
    ),
    (
        Media(6, b"BM\x00"),
        "0000002783a474797065aa6d656469615f64617461aa726571756573745f696406a464617461c403424d00",
    ),
    (
        Embed(4, ["hi", [TokensPart([1, 2])]]),
        "0000003b83a474797065a5656d626564aa726571756573745f696404a6696e7075747392a268699182a47479"
        "7065a6746f6b656e73a6746f6b656e73920102",
    ),
    (
        Embed(5, [], pooling="last", normalize=False, truncate=True),
        "0000004286a474797065a5656d626564aa726571756573745f696405a6696e7075747390a7706f6f6c696e67"
        "a46c617374a96e6f726d616c697a65c2a87472756e63617465c3",
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
        MediaWanted(6, [bytes(range(32)), bytes(32)]),
        "0000006b83a474797065ac6d656469615f77616e746564aa726571756573745f696406a673686132353692c4"
        "20000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fc420000000000000000000"
        "0000000000000000000000000000000000000000000000",
    ),
    (
        PromptProgress(1, n_ahead=2),
        "0000002b83a474797065af70726f6d70745f70726f6772657373aa726571756573745f696401a76e5f616865"
        "616402",
    ),
    (
        PromptProgress(1, n_prompt=300, n_cached=100, n_processed=228, index=1),
        "0000004d86a474797065af70726f6d70745f70726f6772657373aa726571756573745f696401a86e5f70726f"
        "6d7074cd012ca86e5f63616368656464ab6e5f70726f636573736564cce4a5696e64657801",
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
        Delta(
            1,
            "é",
            n_tokens=2,
            index=3,
            logprobs=[
                TokenLogprobs(195, -0.5, b"\xc3", [TopLogprob(195, -0.5, b"\xc3")]),
                TokenLogprobs(169, -1.0, b"\xa9"),
            ],
        ),
        "0000006a86a474797065a564656c7461aa726571756573745f696401a474657874a2c3a9a86e5f746f6b656e"
        "7302a5696e64657803a86c6f6770726f62739294ccc3cbbfe0000000000000c401c39193ccc3cbbfe0000000"
        "000000c401c394cca9cbbff0000000000000c401a990",
    ),
    (
        Finished(1, "stop"),
        "00000029de0003a474797065a866696e6973686564aa726571756573745f696401a6726561736f6ea473746f"
        "70",
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
        "0000010cde000ea474797065a866696e6973686564aa726571756573745f696401a6726561736f6ead73746f"
        "705f73657175656e6365ad73746f705f73657175656e6365a10aa86e5f70726f6d70740aa86e5f6361636865"
        "6404ab6e5f67656e657261746564ccc8ac6e5f746578745f6279746573ce00011170a66e5f6b65657001ab6e"
        "5f7472756e636174656402a86e5f73686966747301a96e5f7368696674656409a47365656407a774696d696e"
        "677385a871756575655f6d73cb3ff0000000000000a7747466745f6d73cb4000000000000000aa69746c5f70"
        "35305f6d73cb3fe0000000000000aa69746c5f7039355f6d73cb3fe8000000000000a8746f74616c5f6d73cb"
        "4010000000000000",
    ),
    (
        Finished(
            1,
            "timeout",
            n_generated=3,
            n_suspended=1,
            choices=[
                Choice("timeout", n_generated=2, seed=7, timings=Timings(prefill_ms=1.0)),
                Choice(
                    "stop_sequence",
                    stop_sequence="x",
                    n_cached=4,
                    n_generated=1,
                    n_text_bytes=1,
                    n_shifts=1,
                    n_shifted=2,
                    n_suspended=1,
                    seed=8,
                    timings=Timings(decode_ms=1.0, sampling_ms=0.5),
                ),
            ],
        ),
        "00000133de0006a474797065a866696e6973686564aa726571756573745f696401a6726561736f6ea774696d"
        "656f7574ab6e5f67656e65726174656403ab6e5f73757370656e64656401a763686f696365739284a6726561"
        "736f6ea774696d656f7574ab6e5f67656e65726174656402a47365656407a774696d696e677381aa70726566"
        "696c6c5f6d73cb3ff00000000000008aa6726561736f6ead73746f705f73657175656e6365ad73746f705f73"
        "657175656e6365a178a86e5f63616368656404ab6e5f67656e65726174656401ac6e5f746578745f62797465"
        "7301a86e5f73686966747301a96e5f7368696674656402ab6e5f73757370656e64656401a47365656408a774"
        "696d696e677382a96465636f64655f6d73cb3ff0000000000000ab73616d706c696e675f6d73cb3fe0000000"
        "000000",
    ),
    (
        Failed(1, "overloaded", "the queue is full", retryable=True, details={"n_waiting": 8}),
        "0000006286a474797065a66661696c6564aa726571756573745f696401a4636f6465aa6f7665726c6f616465"
        "64a76d657373616765b17468652071756575652069732066756c6ca9726574727961626c65c3a76465746169"
        "6c7381a96e5f77616974696e6708",
    ),
    (
        Embeddings(4, [bytes(4), b"\x00\x00\x80?"], 1, [2, 3]),
        "0000004685a474797065aa656d62656464696e6773aa726571756573745f696404a7766563746f727392c404"
        "00000000c4040000803fa66e5f64696d7301a86e5f746f6b656e73920203",
    ),
    (
        Embeddings(4, [], 384, [], first=7, last=False, truncated=[0, 300]),
        "0000005688a474797065aa656d62656464696e6773aa726571756573745f696404a7766563746f727390a66e"
        "5f64696d73cd0180a86e5f746f6b656e7390a5666972737407a46c617374c2a97472756e63617465649200cd"
        "012c",
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
        Status(7, "ready", n_images=3, n_images_encoded=2, image_cache_bytes=70000, encode_s=0.5),
        "0000006cde0007a474797065a6737461747573aa726571756573745f696407a57374617465a57265616479a8"
        "6e5f696d6167657303b06e5f696d616765735f656e636f64656402b1696d6167655f63616368655f62797465"
        "73ce00011170a8656e636f64655f73cb3fe0000000000000",
    ),
    (
        Status(7, "ready", n_images_decoded=1, image_store_bytes=9, image_store_bytes_in_use=2),
        "00000066de0006a474797065a6737461747573aa726571756573745f696407a57374617465a57265616479b0"
        "6e5f696d616765735f6465636f64656401b1696d6167655f73746f72655f627974657309b8696d6167655f73"
        "746f72655f62797465735f696e5f75736502",
    ),
    (
        Model(9, "tiny", 259, 64, 128, n_image_rows=258, n_batch=512, n_ubatch=256),
        "0000006bde0009a474797065a56d6f64656caa726571756573745f696409a46e616d65a474696e79a76e5f76"
        "6f636162cd0103a56e5f63747840ab6e5f6374785f747261696ecc80ac6e5f696d6167655f726f7773cd0102"
        "a76e5f6261746368cd0200a86e5f756261746368cd0100",
    ),
    (
        Model(9, "tiny", 259, 64, 128, bos_token=256, end_tokens=[257]),
        "00000060de0008a474797065a56d6f64656caa726571756573745f696409a46e616d65a474696e79a76e5f76"
        "6f636162cd0103a56e5f63747840ab6e5f6374785f747261696ecc80a9626f735f746f6b656ecd0100aa656e"
        "645f746f6b656e7391cd0101",
    ),
    (
        Model(
            9,
            "tiny",
            259,
            64,
            128,
            adapters=["tone"],
            can_generate=False,
            n_embd=384,
            n_embed=512,
            poolings=["model", "cls"],
        ),
        "0000008ade000ba474797065a56d6f64656caa726571756573745f696409a46e616d65a474696e79a76e5f76"
        "6f636162cd0103a56e5f63747840ab6e5f6374785f747261696ecc80a8616461707465727391a4746f6e65ac"
        "63616e5f67656e6572617465c2a66e5f656d6264cd0180a76e5f656d626564cd0200a8706f6f6c696e677392"
        "a56d6f64656ca3636c73",
    ),
    (
        Model(9, "tiny", 259, 64, 128, bos_token=1, eos_token=2, adds_bos=False),
        "00000064de0009a474797065a56d6f64656caa726571756573745f696409a46e616d65a474696e79a76e5f76"
        "6f636162cd0103a56e5f63747840ab6e5f6374785f747261696ecc80a9626f735f746f6b656e01a9656f735f"
        "746f6b656e02a8616464735f626f73c2",
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
