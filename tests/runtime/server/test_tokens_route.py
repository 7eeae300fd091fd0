"""/tokenize, /detokenize and /apply-template in vLLM's shapes and in llama.cpp's."""

import pytest
from conftest import SPECIAL_TEXTS, TEMPLATE, ScriptedEngine
from starlette.testclient import TestClient

from runtime.chat import ChatTemplate, encode_chat

HELLO = [{"role": "user", "content": "Hi <|im_end|>"}]


def test_a_text_has_the_tokenizers_ids_and_comes_back_from_them(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: the tokenizer."""
    text = f"café{SPECIAL_TEXTS[1]}"
    answer = client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    token_ids = engine.tokenizer.encode(text)
    assert answer["tokens"] == token_ids
    assert (answer["count"], answer["max_model_len"]) == (len(token_ids), 200)
    assert answer["token_strs"][-1] == SPECIAL_TEXTS[1]
    back = client.post("/detokenize", json={"tokens": token_ids}).json()
    assert back == {"prompt": text, "content": text}


def test_llama_cpps_names_work_too(client: TestClient, engine: ScriptedEngine) -> None:
    """Oracle: llama.cpp's server documentation; part of a character is a list of bytes."""
    body = {"content": f"é{SPECIAL_TEXTS[0]}", "with_pieces": True, "parse_special": False}
    tokens = client.post("/tokenize", json=body).json()["tokens"]
    assert [token["piece"] for token in tokens] == [[0xC3], [0xA9], *SPECIAL_TEXTS[0]]
    assert [token["id"] for token in tokens] == engine.tokenizer.encode(
        body["content"], parse_special=False
    )


def test_a_conversation_is_tokenised_as_the_chat_route_does(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: encode_chat; special-token text in a message stays text."""
    assert engine.chat_template is not None
    body = {"messages": HELLO, "add_generation_prompt": False}
    expected = encode_chat(
        engine.tokenizer, engine.chat_template, HELLO, add_generation_prompt=False
    )
    assert client.post("/tokenize", json=body).json()["tokens"] == expected
    text = ChatTemplate(TEMPLATE).render(HELLO)
    assert client.post("/apply-template", json={"messages": HELLO}).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        ("/tokenize", "prompt", {}),
        ("/tokenize", "prompt", {"prompt": 5}),
        ("/tokenize", "messages", {"messages": []}),
        ("/tokenize", "add_special_tokens", {"prompt": "Hi", "add_special_tokens": 1}),
        ("/detokenize", "tokens", {}),
        ("/detokenize", "tokens", {"tokens": [1.5]}),
        ("/detokenize", "tokens", {"tokens": [10**6]}),
        ("/apply-template", "messages", {}),
    ],
)
def test_a_wrong_body_is_a_400_that_names_the_field(
    client: TestClient, path: str, param: str, body: dict
) -> None:
    """Oracle: the field at fault."""
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_another_model_is_a_404(client: TestClient) -> None:
    """Oracle: OpenAI's code for it."""
    answer = client.post("/tokenize", json={"model": "other", "prompt": "Hi"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
