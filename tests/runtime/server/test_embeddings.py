"""/v1/embeddings, /v1/score and /v1/rerank: vectors of the scripted engine in the shapes clients
know, and one of a real model.
"""

import asyncio
import base64
import math

import httpx
import numpy as np
import openai
import pytest
from conftest import ScriptedEngine, app_of, served
from golden import FOLDER, golden
from starlette.testclient import TestClient

from runtime.config import EngineConfig, ServerConfig
from runtime.engine.async_engine import AsyncEngine
from runtime.engine.engine import Engine
from runtime.server.app import build_app
from runtime.server.keys import ApiKeys

PATH = "/v1/embeddings"


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def vectors_of(answer) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.array([entry["embedding"] for entry in answer.json()["data"]])


@pytest.mark.parametrize("pooling", [None, "last", "mean", "cls"])
def test_texts_and_ids_give_the_engines_vectors(
    client: TestClient, engine: ScriptedEngine, pooling: str | None
) -> None:
    """Oracle: the script's table of sines; length 1."""
    ids = [engine.tokenizer.encode(text) for text in ("Hello", "Bye now")]
    expected = [unit(engine.vector(each, pooling or "last")) for each in ids]
    for inputs in (["Hello", "Bye now"], ids):
        found = vectors_of(client.post(PATH, json={"input": inputs, "pooling": pooling}))
        np.testing.assert_allclose(found, expected, atol=1e-7)
    for single in ("Hello", ids[0]):
        answer = client.post(PATH, json={"input": single, "pooling": pooling})
        np.testing.assert_allclose(vectors_of(answer), expected[:1], atol=1e-7)
        body = answer.json()
        assert (body["object"], body["model"]) == ("list", "scripted")
        assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
        assert body["data"][0]["index"] == 0


def test_fewer_dimensions_are_the_first_ones_at_length_one(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: the whole vector, cut."""
    whole = engine.vector(engine.tokenizer.encode("Hello"), "last")
    answer = client.post(PATH, json={"input": "Hello", "dimensions": 3})
    np.testing.assert_allclose(vectors_of(answer)[0], unit(whole[:3]), atol=1e-7)
    answer = client.post(PATH, json={"input": "Hello", "normalize": False})
    assert np.array_equal(vectors_of(answer)[0].astype(np.float32), whole)


def test_base64_holds_the_same_floats(client: TestClient) -> None:
    """Oracle: little-endian float32, as OpenAI's client reads it."""
    floats = vectors_of(client.post(PATH, json={"input": "Hello"}))[0]
    answer = client.post(PATH, json={"input": "Hello", "encoding_format": "base64"}).json()
    raw = base64.b64decode(answer["data"][0]["embedding"])
    assert np.array_equal(np.frombuffer(raw, "<f4"), floats.astype(np.float32))


def test_a_long_text_is_cut_where_asked_for_and_else_refused(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: vLLM's truncate_prompt_tokens keeps the last tokens."""
    text = "x" * 200 + "tail"
    refused = client.post(PATH, json={"input": ["short", text]})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert "200" in error["message"] and "204" in error["message"]
    for count, kept in ((-1, text[-200:]), (4, "tail"), (999, text[:150])):
        prompt = text[:150] if count == 999 else text
        body = {"input": prompt, "truncate_prompt_tokens": count}
        assert client.post(PATH, json=body).status_code == 200
        assert engine.requests[-1].prompt_token_ids == tuple(engine.tokenizer.encode(kept))


def test_lists_take_at_most_half_of_the_engines_places_and_take_turns(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the most requests that were open at a time (the engine has four places), and the
    order in which two lists and a text after them are answered.
    """
    num_open, most = 0, 0
    generate = engine.generate

    async def counted(request):
        nonlocal num_open, most
        num_open += 1
        most = max(most, num_open)
        async for delta in generate(request):
            yield delta
        num_open -= 1

    monkeypatch.setattr(engine, "generate", counted)
    lists = [[f"list {number}, {index}" for index in range(20)] for number in range(2)]
    answered = []

    async def ask(client: httpx.AsyncClient, texts: list[str]) -> np.ndarray:
        answer = await client.post(PATH, json={"input": texts})
        answered.append(texts)
        return vectors_of(answer)

    async def ask_all() -> list[np.ndarray]:
        transport = httpx.ASGITransport(app_of(engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await asyncio.gather(*(ask(client, texts) for texts in (*lists, ["one text"])))

    for texts, found in zip((*lists, ["one text"]), asyncio.run(ask_all()), strict=True):
        expected = [unit(engine.vector(engine.tokenizer.encode(text), "last")) for text in texts]
        np.testing.assert_allclose(found, expected, atol=1e-7)
    assert most == 2
    assert answered[0] == ["one text"]


@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        (PATH, "input", {}),
        (PATH, "input", {"input": []}),
        (PATH, "input", {"input": ["a", 5]}),
        (PATH, "input", {"input": ""}),
        (PATH, "input[1]", {"input": ["a", ""]}),
        (PATH, "input", {"input": [10**6]}),
        (PATH, "input", {"input": ["a"] * 2049}),
        (PATH, "dimensions", {"input": "a", "dimensions": 9}),
        (PATH, "dimensions", {"input": "a", "dimensions": 0}),
        (PATH, "pooling", {"input": "a", "pooling": "max"}),
        (PATH, "encoding_format", {"input": "a", "encoding_format": "int8"}),
        ("/v1/score", "text_1", {"text_2": "a"}),
        ("/v1/score", "text_1", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
        ("/v1/score", "documents", {"queries": "a"}),
        ("/v1/score", "text_2[1]", {"text_1": "a", "text_2": ["a", 5]}),
        ("/v1/rerank", "query", {"documents": ["a"]}),
        ("/v1/rerank", "documents", {"query": "a", "documents": []}),
        ("/v1/rerank", "documents", {"query": "a", "documents": "b"}),
        ("/v1/rerank", "documents[0]", {"query": "a", "documents": [""]}),
        ("/v1/rerank", "top_n", {"query": "a", "documents": ["b"], "top_n": -1}),
    ],
)
def test_a_wrong_body_is_a_400_that_names_the_field(
    client: TestClient, path: str, param: str, body: dict
) -> None:
    """Oracle: the field at fault."""
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_a_score_is_the_cosine_of_two_vectors(
    client: TestClient, engine: ScriptedEngine, path: str
) -> None:
    """Oracle: the script's vectors."""

    def cosine(one: str, other: str) -> float:
        first, second = (engine.vector(engine.tokenizer.encode(t), "last") for t in (one, other))
        return float(unit(first) @ unit(second))

    body = {"text_1": "cat", "text_2": ["dog", {"text": "car"}]}
    answer = client.post(path, json=body).json()
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    found = [entry["score"] for entry in answer["data"]]
    assert np.allclose(found, [cosine("cat", "dog"), cosine("cat", "car")], atol=1e-6)
    assert answer["usage"]["total_tokens"] == 9
    pairs = {"queries": ["cat", "bus"], "documents": ["dog", "bus"]}
    found = [entry["score"] for entry in client.post(path, json=pairs).json()["data"]]
    assert np.allclose(found, [cosine("cat", "dog"), 1.0], atol=1e-6)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_come_best_first(client: TestClient, path: str) -> None:
    """Oracle: /v1/score."""
    documents = ["dog", "cat", "bus", "tree"]
    body = {"text_1": "cat", "text_2": documents}
    scores = [entry["score"] for entry in client.post("/v1/score", json=body).json()["data"]]
    answer = client.post(path, json={"query": "cat", "documents": documents}).json()
    results = answer["results"]
    assert [result["index"] for result in results] == sorted(range(4), key=lambda i: -scores[i])
    for result in results:
        assert math.isclose(result["relevance_score"], scores[result["index"]], abs_tol=1e-9)
        assert result["document"] == {"text": documents[result["index"]]}
    body = {"query": "cat", "documents": documents, "top_n": 2, "return_documents": False}
    assert [set(result) for result in client.post(path, json=body).json()["results"]] == [
        {"index", "relevance_score"}
    ] * 2


@pytest.mark.slow
def test_the_openai_client_reads_the_vectors_of_a_real_model(tmp_path) -> None:
    """Oracle: transformers' hidden states; the model's folder asks for their mean."""
    recipe = golden("qwen3")
    folder = recipe.write(tmp_path / "tiny")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    options = {"max_num_seqs": 2, "max_model_len": 64, "prefill_chunk_size": 32}
    engine = AsyncEngine(Engine(EngineConfig(model=str(folder), kv_cache_gb=0.01, **options)))
    config = ServerConfig()
    hidden = np.load(FOLDER / "qwen3" / "hidden.npy")
    with (
        served(build_app(engine, config, ApiKeys.of(config))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = client.embeddings.create(model=engine.model_name, input=recipe.prompt_token_ids)
        found = answer.data[0].embedding
        np.testing.assert_allclose(found, unit(hidden.mean(axis=0)), atol=2e-6)
        assert answer.usage.prompt_tokens == len(recipe.prompt_token_ids)
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="none-such", input="Hi")
    assert engine.stats().compiles_after_ready == 0


def test_a_dead_engine_is_a_503(client: TestClient, engine: ScriptedEngine) -> None:
    """Oracle: the code of the error."""
    engine.is_ready = False
    answer = client.post(PATH, json={"input": ["a", "b"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
