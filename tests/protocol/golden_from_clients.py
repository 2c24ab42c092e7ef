"""The bytes of version 1 for what clients say."""

from runnerd_protocol.messages import (
    Adapter,
    Cancel,
    ClientMessage,
    Detokenize,
    Embed,
    Generate,
    GetModel,
    GetStatus,
    Hello,
    Media,
    MediaPart,
    Plan,
    Subscribe,
    TextPart,
    Tokenize,
    TokensPart,
)

FROM_CLIENTS: list[tuple[ClientMessage, str]] = [
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
        Plan(10),
        "0000001782a474797065a4706c616eaa726571756573745f69640a",
    ),
    (
        Plan(11, n_ctx=4096, n_slots=1, kv_type="q8_0", n_gpu_layers=0),
        "0000004486a474797065a4706c616eaa726571756573745f69640ba56e5f637478cd1000a76e5f736c6f7473"
        "01a76b765f74797065a471385f30ac6e5f6770755f6c617965727300",
    ),
]
