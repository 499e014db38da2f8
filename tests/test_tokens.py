import pytest

from rexseek.tokens import (
    ADDED_TOKENS,
    IM_END,
    REFUSAL,
    check_plain_text,
    parse_answer,
    question_for,
    render_answer,
)


def block(phrase: str, *indices: int) -> str:
    objects = "".join(f"<obj{index}>" for index in indices)
    return f"<ground>{phrase}</ground><objects>{objects}</objects>"


def test_added_tokens_in_released_order():
    assert len(ADDED_TOKENS) == len(set(ADDED_TOKENS)) == 104
    assert ADDED_TOKENS[0] == "<obj0>" and ADDED_TOKENS[99] == "<obj99>"
    assert ADDED_TOKENS[100:] == ("<ground>", "</ground>", "<objects>", "</objects>")


def test_question_is_the_released_template():
    expected = "Please detect {the man} in this image. Answer the question with object indexes."
    assert question_for(" {the man}\n") == expected


@pytest.mark.parametrize(
    "text",
    [
        "a man",
        "x" * 2000,
        "穿红衣服的人",
        "👩‍👩‍👧 family",
        "שלום",
        "two\nlines",
        "a < b > c",
        "{braces}",
        "<obj>",
    ],
)
def test_plain_text_passes(text):
    assert check_plain_text(f" {text}\n", "expression") == text


@pytest.mark.parametrize(
    "text",
    [
        "<image>",
        "<objfeat>",
        "the <obj3>",
        "<obj100>",
        "<|im_end|>",
        "<|endoftext|>",
        "</ground>",
        "<tool_call>",
    ],
)
def test_special_tokens_in_text_are_refused(text):
    with pytest.raises(ValueError, match="expression 7: the special token"):
        check_plain_text(f"a man {text}", "expression 7")


@pytest.mark.parametrize(
    ("text", "message"), [("", "some text"), (" \n", "some text"), (3, "a string, got int")]
)
def test_texts_without_text_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        check_plain_text(text, "expression")


def test_render_answer():
    assert render_answer([(" a man ", [4, 1])]) == block("a man", 1, 4)
    assert render_answer([("a man", [])]) == REFUSAL
    assert render_answer([("a", []), ("b", ())]) == REFUSAL
    assert render_answer([("a", [2]), ("b", [])]) == block("a", 2) + block("b")


@pytest.mark.parametrize(
    "blocks", [[], [("", [1])], [("a", [1, 1])], [("a", [100])], [("a", [-1])], [("<ground>", [1])]]
)
def test_render_refuses(blocks):
    with pytest.raises(ValueError):
        render_answer(blocks)


@pytest.mark.parametrize(
    "blocks",
    [[("a man", (0, 4))], [("a", (1,)), ("b", ()), ("c", (2, 3))], [("two\nlines", (1,))], [("a < b", (3,))]],
)
def test_what_is_rendered_parses(blocks):
    parsed = parse_answer(render_answer(blocks) + IM_END, 5)
    assert (parsed.status, parsed.problem) == ("found", None)
    assert list(parsed.blocks) == blocks


def test_blanks_between_blocks_and_free_order():
    parsed = parse_answer(f" {block('a', 3, 1)}\n {block('b', 2)}\n{IM_END}\n", 5)
    assert parsed.status == "found"
    assert parsed.blocks == (("a", (3, 1)), ("b", (2,)))


def test_refusal():
    assert parse_answer(f"{REFUSAL}{IM_END}", 0).status == "rejected"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        IM_END,
        "no tags at all",
        "There is no such thing in this image",
        f"{REFUSAL} {REFUSAL}",
        f"{block('a', 1)} {REFUSAL}",
        f"{REFUSAL}{block('a', 1)}",
        f"<ground>a</ground><objects>{REFUSAL}</objects>",
        "<ground>a</ground><objects>None</objects>",
        block("a"),
        block("a") + block("b"),
        block("a", 2, 2),
        block("a", 1, 99),
        block("a", 5),
        block("", 0),
        block("a", 1) + block("a", 2),
        block("<obj1>", 1),
        "<ground> man </ground> <objects> <obj1> </objects>",
        "<ground>a</ground> <objects><obj1></objects>",
        "<ground>a</ground><objects><obj1> <obj2></objects>",
        "<ground>a</ground><objects><obj1><obj2>",
        "<ground>a</ground><objects><obj01></objects>",
        "<ground>a</ground><objects><obj-1></objects>",
        "the <ground>a</ground><objects><obj1></objects>",
        "<ground>a<ground>b</ground><objects><obj1></objects>",
        block("a", 1) + IM_END + IM_END,
    ],
)
def test_everything_else_is_malformed(answer):
    parsed = parse_answer(answer, 5)
    assert parsed.status == "malformed"
    assert parsed.blocks == ()
    assert parsed.problem
