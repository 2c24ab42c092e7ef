from runnerd.results import Completion, completion_of
from runnerd_protocol.messages import Choice, Delta, Finished, TokenLogprobs


def picked(data: bytes) -> TokenLogprobs:
    return TokenLogprobs(data[0], -1.0, data)


def test_the_only_completion_is_a_choice_too() -> None:
    finished = Finished(1, "stop_sequence", stop_sequence="x", n_generated=3, n_cached=2, seed=7)
    done = completion_of([Delta(1, "a", logprobs=[picked(b"a")]), Delta(1, "b")], finished)
    assert (done.text, done.logprobs) == ("ab", (picked(b"a"),))
    (choice,) = done.choices
    assert (choice.text, choice.logprobs) == (done.text, done.logprobs)
    assert choice.summary == Choice(
        "stop_sequence", stop_sequence="x", n_cached=2, n_generated=3, seed=7
    )


def test_deltas_are_joined_by_completion() -> None:
    choices = [Choice("stop", seed=1), Choice("length", seed=2), Choice("stop", seed=3)]
    deltas = [
        Delta(1, "a", index=0),
        Delta(1, "x", index=1, logprobs=[picked(b"x")]),
        Delta(1, "b", index=0),
        Delta(1, "y", index=1, logprobs=[picked(b"y")]),
    ]
    done = completion_of(deltas, Finished(1, "stop", choices=choices))
    assert [choice.text for choice in done.choices] == ["ab", "xy", ""]
    assert [choice.summary for choice in done.choices] == choices
    assert done.choices[1].logprobs == (picked(b"x"), picked(b"y"))
    assert done.text == "ab"


def test_a_completion_without_text_is_empty() -> None:
    assert completion_of([], Finished(1, "length")).text == ""


def test_a_completion_without_choices_has_no_logprobs() -> None:
    assert Completion("x", Finished(1, "stop")).logprobs == ()
