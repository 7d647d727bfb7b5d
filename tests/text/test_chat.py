from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.errors import ModelError, UsageError
from specllama.text.chat import ChatTemplate, Message, chat_prompt
from specllama.text.vocabulary import Vocabulary
from tests.text.fakes import FakeVocabulary

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start|>' + m.role + '<|end|>\n\n' + m.content | trim + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<turn>' + role + '\n' + m.content | trim + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}{% endif %}"
    "{% endfor %}"
)
FORGETS_REASONING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content.split('</think>')[-1] }}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HI = [Message("user", "Hi")]
TALK = [Message("system", "Be brief."), *HI, Message("assistant", "Hello!"), Message("user", "Go")]


def render(source: str, messages: list[Message], add_generation_prompt: bool = True) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, add_generation_prompt)


def bytes_of(vocabulary: Vocabulary, ids: list[int]) -> str:
    return b"".join(vocabulary.piece(token, special=True) for token in ids).decode()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            CHATML,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            LLAMA3,
            "<s><|start|>system<|end|>\n\nBe brief.<|eot|><|start|>user<|end|>\n\nHi<|eot|>"
            "<|start|>assistant<|end|>\n\nHello!<|eot|><|start|>user<|end|>\n\nGo<|eot|>"
            "<|start|>assistant<|end|>\n\n",
        ),
        (
            GEMMA,
            "<s><turn>user\nBe brief.\n\nHi<end>\n<turn>model\nHello!<end>\n<turn>user\nGo<end>\n"
            "<turn>model\n",
        ),
        (MISTRAL, "<s>[INST] Be brief.\n\nHi [/INST] Hello!</s>[INST] Go [/INST]"),
    ],
)
def test_families_of_templates(source: str, text: str) -> None:
    assert render(source, TALK) == text


def test_without_generation_prompt_the_text_ends_with_the_last_message() -> None:
    assert render(CHATML, HI, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_system_text_alone_becomes_a_user_message_where_there_is_no_system_role() -> None:
    assert render(GEMMA, TALK[:1]) == "<s><turn>user\nBe brief.<end>\n<turn>model\n"


def test_a_refused_conversation_says_what_the_template_says() -> None:
    with pytest.raises(UsageError, match="Roles must alternate user/assistant"):
        render(GEMMA, [*HI, *HI])


def test_what_a_template_may_use() -> None:
    source = (
        "{% for m in messages %}\n"
        "  {% if m.content == 'skip' %}{% continue %}{% endif %}\n"
        "{% generation %}{{ {'ü<': m.content} | tojson }}{% endgeneration %}\n"
        "{% endfor %}{{ strftime_now('%Y') }}"
    )
    text = render(source, [Message("user", "skip"), *HI])
    assert text == f'{{"ü<": "Hi"}}{datetime.now().year}'


def test_tojson_takes_the_arguments_of_transformers() -> None:
    source = "{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true, separators=(',', ':')) }}"
    assert render(source, HI) == '{\n "a":[\n  2\n ],\n "b":1\n}'


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self._TemplateReference__context.eval_ctx.environment.globals.clear() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'other'}) }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_the_sandbox_refuses_what_a_template_has_no_business_with(source: str) -> None:
    with pytest.raises(ModelError, match="chat template fails"):
        render(source, HI)


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ messages[0].nothing.at.all }}", "{{ f() }}"])
def test_a_failing_template_is_a_model_error(source: str) -> None:
    with pytest.raises(ModelError, match="--chat-template"):
        render(source, HI)


def test_a_source_that_is_no_template_names_its_line() -> None:
    with pytest.raises(ModelError, match="line 2"):
        ChatTemplate("{{ bos_token }}\n{% for %}", "", "")


def test_a_message_needs_a_known_role_and_a_text() -> None:
    with pytest.raises(UsageError, match=r"'robot'.*system, user, assistant"):
        Message("robot", "Hi")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be text"):
        Message("user", None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="whole numbers"):
        Message("assistant", "Hi", ("Hi",))  # type: ignore[arg-type]


def test_without_a_template_chatml_is_used_where_the_vocabulary_has_it() -> None:
    template = ChatTemplate.of(FakeVocabulary())
    assert template.is_fallback
    assert template.stops == ()
    assert template.render(TALK) == render(CHATML, TALK)


def test_without_a_template_and_chatml_turns_are_plain_paragraphs() -> None:
    template = ChatTemplate.of(FakeVocabulary(control=["<s>", "</s>"]))
    text = template.render(TALK)
    assert text == "Be brief.\n\nUser: Hi\n\nAssistant: Hello!\n\nUser: Go\n\nAssistant:"
    assert template.is_fallback
    assert template.stops == ("\n\nUser:",)


def test_the_models_template_and_a_given_one_are_no_fallback() -> None:
    vocabulary = FakeVocabulary(chat_template=LLAMA3)
    assert ChatTemplate.of(vocabulary).render(HI) == render(LLAMA3, HI)
    assert ChatTemplate.of(vocabulary, MISTRAL).render(HI) == render(MISTRAL, HI)
    assert not ChatTemplate.of(vocabulary).is_fallback


@pytest.mark.parametrize("source", [CHATML, LLAMA3])
@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_is_never_doubled(source: str, add_bos: bool) -> None:
    vocabulary = FakeVocabulary(add_bos=add_bos, chat_template=source)
    ids = chat_prompt(vocabulary, HI)
    assert ids.count(vocabulary.control_id("<s>")) == int(add_bos or source is LLAMA3)
    assert (ids[0] == vocabulary.bos) == (add_bos or source is LLAMA3)


# "He|llo" is how the model said it; encoding the text again gives "Hello".
SPLIT_WORDS = ["He", "llo", "Hello", " Hello", " He", "<turn>", "[INST]", "\n", "🦙"]


def conversation(
    vocabulary: FakeVocabulary, reply: list[int], text: str
) -> tuple[list[int], list[int]]:
    """Prompt ids of a turn, and of the next one after this reply."""
    talk = [Message("system", "Be brief."), *HI]
    after = [*talk, Message("assistant", text, tuple(reply)), Message("user", "Hello 🦙")]
    return chat_prompt(vocabulary, talk), chat_prompt(vocabulary, after)


def encoded_at_once(vocabulary: FakeVocabulary, reply: str) -> str:
    """The bytes of the same next prompt, without regard for tokens."""
    after = [*TALK[:2], Message("assistant", reply), Message("user", "Hello 🦙")]
    text = ChatTemplate.of(vocabulary).render(after)
    return bytes_of(vocabulary, vocabulary.tokenize(text, special=True, add_bos=False))


def ids_of(vocabulary: FakeVocabulary, *words: str) -> list[int]:
    return [256 + SPLIT_WORDS.index(word) for word in words]


@pytest.mark.parametrize("source", [CHATML, LLAMA3, GEMMA, MISTRAL, FORGETS_REASONING])
@pytest.mark.parametrize("adds_space", [False, True])
def test_the_next_prompt_begins_with_this_prompt_and_reply(source: str, adds_space: bool) -> None:
    vocabulary = FakeVocabulary(SPLIT_WORDS, adds_space=adds_space, chat_template=source)
    # In Mistral's format the model says the space itself.
    words = [" He", "llo"] if source is MISTRAL else ["He", "llo"]
    reply = ids_of(vocabulary, *words, "🦙")
    before, after = conversation(vocabulary, reply, "Hello🦙")
    assert after[: len(before) + len(reply)] == before + reply
    assert bytes_of(vocabulary, after) == encoded_at_once(vocabulary, "Hello🦙")


def test_white_space_that_a_template_trims_costs_only_its_own_token() -> None:
    vocabulary = FakeVocabulary(SPLIT_WORDS, chat_template=LLAMA3)
    reply = ids_of(vocabulary, "He", "llo", "\n")
    before, after = conversation(vocabulary, reply, "Hello\n")
    assert after[: len(before) + 2] == before + reply[:2]
    assert after[len(before) + 2 :][:1] != reply[2:]


def test_a_token_half_behind_the_stop_string_is_encoded_from_its_text() -> None:
    vocabulary = FakeVocabulary(SPLIT_WORDS, chat_template=CHATML)
    reply = ids_of(vocabulary, "He", "llo")
    before, after = conversation(vocabulary, reply, "Hel")
    assert after[: len(before) + 1] == before + reply[:1]
    assert bytes_of(vocabulary, after[len(before) :]).startswith("Hel<|im_end|>")


def test_reasoning_that_a_template_forgets_is_not_kept_by_its_tokens() -> None:
    vocabulary = FakeVocabulary(SPLIT_WORDS, chat_template=FORGETS_REASONING)
    said = "hm</think>Hello"
    reply = vocabulary.tokenize(said, special=False, add_bos=False)
    before, after = conversation(vocabulary, reply, said)
    assert after[: len(before)] == before
    assert bytes_of(vocabulary, after[len(before) :]).startswith("Hello<|im_end|>")


def test_tokens_of_another_text_than_the_content_lose_to_the_content() -> None:
    vocabulary = FakeVocabulary(SPLIT_WORDS, chat_template=CHATML)
    _, after = conversation(vocabulary, ids_of(vocabulary, "🦙", "llo"), "edited")
    assert "assistant\nedited<|im_end|>" in bytes_of(vocabulary, after)


@pytest.mark.parametrize("foreign", [-1, 10**6, 2**31])
def test_tokens_of_another_model_lose_to_the_content(foreign: int) -> None:
    """llama.cpp would end the process over an id that it does not know."""
    vocabulary = FakeVocabulary(SPLIT_WORDS, chat_template=CHATML)
    reply = [*ids_of(vocabulary, "He"), foreign]
    before, after = conversation(vocabulary, reply, "Hello")
    assert after[: len(before) + 1] == before + reply[:1]
    assert bytes_of(vocabulary, after[len(before) :]).startswith("Hello<|im_end|>")


def test_tokens_that_part_from_the_content_within_a_character_leave_it_whole() -> None:
    vocabulary = FakeVocabulary(chat_template=CHATML)
    before, after = conversation(vocabulary, [ord("a"), *"è".encode()], "aé")
    assert after[: len(before) + 1] == [*before, ord("a")]
    assert bytes_of(vocabulary, after[len(before) :]).startswith("aé<|im_end|>")


def test_a_prompt_that_a_template_takes_back_costs_the_reply_not_the_text() -> None:
    opens_reasoning = CHATML.replace("assistant\n'", "assistant\n<think>'")
    vocabulary = FakeVocabulary(SPLIT_WORDS, chat_template=opens_reasoning)
    before, after = conversation(vocabulary, ids_of(vocabulary, "He", "llo"), "Hello")
    assert bytes_of(vocabulary, before).endswith("<think>")
    shared = len(before) - len("<think>")
    assert after[:shared] == before[:shared]
    assert bytes_of(vocabulary, after) == encoded_at_once(vocabulary, "Hello")
    assert after.count(vocabulary.control_id("<|im_end|>")) == 4


def test_tokens_that_run_on_into_the_next_turn_do_not_repeat_it() -> None:
    vocabulary = FakeVocabulary(chat_template=CHATML)
    turn = "<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\nYo"
    run_on = tuple(("Hi" + turn).encode())
    talk = [
        *HI,
        Message("assistant", "Hi", run_on),
        Message("user", "Go"),
        Message("assistant", "Yo", tuple(b"Yo")),
        Message("user", "End"),
    ]
    text = bytes_of(vocabulary, chat_prompt(vocabulary, talk))
    assert text == ChatTemplate.of(vocabulary).render(talk)


def test_a_reply_to_no_user_needs_no_prompt_of_its_own() -> None:
    wants_user = (
        "{% if add_generation_prompt and messages[-1].role != 'user' %}"
        "{{ raise_exception('No question') }}{% endif %}" + CHATML
    )
    vocabulary = FakeVocabulary(chat_template=wants_user)
    talk = [Message("system", "Greet."), Message("assistant", "Hello!", tuple(b"Hello!")), *HI]
    assert bytes_of(vocabulary, chat_prompt(vocabulary, talk)).endswith("assistant\n")


def test_a_line_feed_that_merges_takes_no_text_with_it() -> None:
    source = "{% for m in messages %}{{ m.content + 'X' }}{% endfor %}"
    vocabulary = FakeVocabulary(["\nX"], adds_space=True, chat_template=source)
    talk = [*HI, Message("assistant", "Yo", tuple(b"Yo")), Message("user", "Go")]
    assert bytes_of(vocabulary, chat_prompt(vocabulary, talk)).endswith("XYo XGoX")


def test_an_end_of_generation_token_among_the_replys_is_not_doubled() -> None:
    vocabulary = FakeVocabulary(SPLIT_WORDS, chat_template=CHATML)
    end = vocabulary.control_id("<|im_end|>")
    _, with_end = conversation(vocabulary, [*ids_of(vocabulary, "He", "llo"), end], "Hello")
    _, without = conversation(vocabulary, ids_of(vocabulary, "He", "llo"), "Hello")
    assert with_end == without


@given(st.lists(st.integers(0, 255 + len(SPLIT_WORDS)), max_size=8), st.booleans())
def test_any_reply_leaves_the_text_and_the_earlier_ids_as_they_are(
    reply: list[int], adds_space: bool
) -> None:
    vocabulary = FakeVocabulary(SPLIT_WORDS, adds_space=adds_space, chat_template=CHATML)
    text = b"".join(map(vocabulary.piece, reply)).decode("utf-8", "replace")
    before, after = conversation(vocabulary, reply, text)
    assert after[: len(before)] == before
    assert bytes_of(vocabulary, after) == encoded_at_once(vocabulary, text)
    if "\ufffd" not in text:
        assert after[len(before) :][: len(reply)] == reply


def test_lone_surrogates_in_a_message_reach_the_tokenizer() -> None:
    class Strict(FakeVocabulary):
        def tokenize(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
            return super().tokenize(text.replace("\udcff", "?"), special=special, add_bos=add_bos)

    ids = chat_prompt(Strict(chat_template=CHATML), [Message("user", "\udcff")])
    assert "user\n?<|im_end|>" in bytes_of(Strict(), ids)


@pytest.mark.model
def test_smollm2_writes_its_default_system_message(smollm2: Vocabulary) -> None:
    text = ChatTemplate.of(smollm2).render(HI)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert "Be brief." in ChatTemplate.of(smollm2).render(TALK)
    assert "SmolLM" not in ChatTemplate.of(smollm2).render(TALK)


@pytest.mark.model
def test_smollm2_keeps_prompt_and_reply_over_many_turns(smollm2: Vocabulary) -> None:
    talk = [Message("user", "Hi 🦙")]
    ids = chat_prompt(smollm2, talk)
    # Letter by letter: what encoding the reply's text again would not give.
    for reply in ("日本語 🦙", "Once upon a time", "  indented\n\n- list\n"):
        tokens = [t for c in reply for t in smollm2.tokenize(c, special=False, add_bos=False)]
        talk += [Message("assistant", reply, tuple(tokens)), Message("user", "More!")]
        said, ids = ids + tokens, chat_prompt(smollm2, talk)
        assert ids[: len(said)] == said
    text = ChatTemplate.of(smollm2).render(talk)
    assert bytes_of(smollm2, ids) == text


@pytest.mark.model
def test_smollm2_reads_control_tokens_and_adds_no_bos(smollm2: Vocabulary) -> None:
    ids = chat_prompt(smollm2, HI)
    controls = [smollm2.text_of(token) for token in ids if smollm2.is_control(token)]
    assert controls == ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"]
