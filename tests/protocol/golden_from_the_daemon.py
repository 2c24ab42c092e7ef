"""The bytes of version 1 for what the daemon says, and for what both say."""

from runnerd_protocol.messages import (
    Accepted,
    Choice,
    DaemonMessage,
    Delta,
    DeviceMemory,
    Embeddings,
    Failed,
    FailedAllocation,
    Finished,
    LayerMemory,
    MediaWanted,
    Memory,
    MemoryReport,
    Model,
    PromptProgress,
    ProtocolError,
    SlotStatus,
    Status,
    Text,
    Timings,
    TokenLogprobs,
    Tokens,
    TopLogprob,
    Welcome,
)

FROM_THE_DAEMON: list[tuple[DaemonMessage, str]] = [
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
    (
        MemoryReport(
            10,
            Memory(
                "m.gguf",
                "llama",
                n_ctx=2048,
                n_slots=4,
                n_cells=8192,
                n_batch=512,
                n_ubatch=256,
                kv="split",
                kv_type="f16",
                n_layers=1,
                n_gpu_layers=0,
                input_bytes=300,
                layers=[LayerMemory("cpu", 1000, 70000), LayerMemory("cpu", 200, 0)],
                devices=[DeviceMemory("cpu", "CPU", "cpu", 2**33, 2**32)],
                fits=True,
            ),
        ),
        "0000016383a474797065ad6d656d6f72795f7265706f7274aa726571756573745f69640aa66d656d6f7279de"
        "000fa56d6f64656ca66d2e67677566ac617263686974656374757265a56c6c616d61a56e5f637478cd0800a7"
        "6e5f736c6f747304a76e5f63656c6c73cd2000a76e5f6261746368cd0200a86e5f756261746368cd0100a26b"
        "76a573706c6974a76b765f74797065a3663136a86e5f6c617965727301ac6e5f6770755f6c617965727300ab"
        "696e7075745f6279746573cd012ca66c61796572739283a6646576696365a3637075ac7765696768745f6279"
        "746573cd03e8a86b765f6279746573ce0001117083a6646576696365a3637075ac7765696768745f62797465"
        "73ccc8a86b765f627974657300a7646576696365739185a26964a3637075a46e616d65a3435055a46b696e64"
        "a3637075ab746f74616c5f6279746573cf0000000200000000aa667265655f6279746573cf00000001000000"
        "00a466697473c3",
    ),
    (
        MemoryReport(
            11,
            Memory(
                "m.gguf",
                "gemma3n",
                n_ctx=4096,
                n_slots=1,
                n_cells=4096,
                n_batch=512,
                n_ubatch=256,
                kv="unified",
                kv_type="q8_0",
                n_layers=1,
                n_gpu_layers=2,
                input_bytes=0,
                layers=[LayerMemory("0000:01:00.0", 5, 6, slides=True, shares_kv=True)],
                devices=[
                    DeviceMemory(
                        "0000:01:00.0",
                        "CUDA0",
                        "gpu",
                        2**34,
                        -1,
                        description="a card",
                        library="CUDA",
                        weight_bytes=5,
                        kv_bytes=6,
                        compute_bytes=7,
                        output_bytes=8,
                        projector_bytes=9,
                        host_bytes=10,
                        reserve_bytes=11,
                    )
                ],
                fits=False,
                cache_bytes=2**20,
                n_ctx_fits=1024,
                n_gpu_layers_fit=1,
                is_measured=True,
                failed=FailedAllocation("KV cache", "0000:01:00.0", 2**33),
            ),
        ),
        "0000025483a474797065ad6d656d6f72795f7265706f7274aa726571756573745f69640ba66d656d6f7279de"
        "0014a56d6f64656ca66d2e67677566ac617263686974656374757265a767656d6d61336ea56e5f637478cd10"
        "00a76e5f736c6f747301a76e5f63656c6c73cd1000a76e5f6261746368cd0200a86e5f756261746368cd0100"
        "a26b76a7756e6966696564a76b765f74797065a471385f30a86e5f6c617965727301ac6e5f6770755f6c6179"
        "65727302ab696e7075745f627974657300a66c61796572739185a6646576696365ac303030303a30313a3030"
        "2e30ac7765696768745f627974657305a86b765f627974657306a6736c69646573c3a97368617265735f6b76"
        "c3a764657669636573918ea26964ac303030303a30313a30302e30a46e616d65a54355444130a46b696e64a3"
        "677075ab746f74616c5f6279746573cf0000000400000000aa667265655f6279746573ffab64657363726970"
        "74696f6ea6612063617264a76c696272617279a443554441ac7765696768745f627974657305a86b765f6279"
        "74657306ad636f6d707574655f627974657307ac6f75747075745f627974657308af70726f6a6563746f725f"
        "627974657309aa686f73745f62797465730aad726573657276655f62797465730ba466697473c2ab63616368"
        "655f6279746573ce00100000aa6e5f6374785f66697473cd0400b06e5f6770755f6c61796572735f66697401"
        "ab69735f6d65617375726564c3a66661696c656483a477686174a84b56206361636865a6646576696365ac30"
        "3030303a30313a30302e30a76e5f6279746573cf0000000200000000",
    ),
    (
        Status(
            13,
            "stalled",
            slots=[
                SlotStatus(0, "idle"),
                SlotStatus(
                    1,
                    "prompt",
                    client_request_id=7,
                    n_prompt=300,
                    n_cached=100,
                    n_evaluated=228,
                    n_generated=1,
                    waiting_s=0.5,
                    age_s=1.5,
                ),
            ],
            stalled="step",
            error="why",
            error_code="internal",
            memory=None,
            oldest_wait_s=2.0,
        ),
        "00000104de0008a474797065a6737461747573aa726571756573745f69640da57374617465a77374616c6c65"
        "64a5736c6f74739282a7736c6f745f696400a57374617465a469646c6589a7736c6f745f696401a573746174"
        "65a670726f6d7074b1636c69656e745f726571756573745f696407a86e5f70726f6d7074cd012ca86e5f6361"
        "6368656464ab6e5f6576616c7561746564cce4ab6e5f67656e65726174656401a977616974696e675f73cb3f"
        "e0000000000000a56167655f73cb3ff8000000000000a77374616c6c6564a473746570a56572726f72a37768"
        "79aa6572726f725f636f6465a8696e7465726e616cad6f6c646573745f776169745f73cb4000000000000000",
    ),
]
