"""The document at /openapi.json describes what the server does."""

import json

import jsonschema
from conftest import ScriptedEngine, app_of
from starlette.testclient import TestClient


def document_of(client: TestClient) -> dict:
    return client.get("/openapi.json").json()


def test_every_route_is_described(client: TestClient) -> None:
    """Oracle: the application's routes."""
    described = document_of(client)["paths"]
    routes = {
        (route.path.replace(":path}", "}"), method)
        for route in client.app.routes  # type: ignore[attr-defined]
        for method in route.methods - {"HEAD"}
    }
    assert {(path, name.upper()) for path, known in described.items() for name in known} == routes
    assert all(operation["summary"] for known in described.values() for operation in known.values())


def test_every_example_follows_its_schema_and_is_answered(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: jsonschema, and the routes."""
    engine.max_model_len = 2000
    for path, known in document_of(client)["paths"].items():
        for operation in known.values():
            if "requestBody" not in operation:
                continue
            body = operation["requestBody"]["content"]["application/json"]
            for example in body["examples"].values():
                jsonschema.validate(example["value"], body["schema"])
                answer = client.post(path, json=example["value"])
                assert answer.status_code == 200, (path, answer.text)


def test_limits_and_alternatives_come_from_the_readers(client: TestClient) -> None:
    """Oracle: what the chat route refuses."""
    chat = document_of(client)["paths"]["/v1/chat/completions"]["post"]
    schema = chat["requestBody"]["content"]["application/json"]["schema"]
    assert "messages" in schema["required"]
    validator = jsonschema.Draft202012Validator(schema)
    hello = {"messages": [{"role": "user", "content": "Hi"}]}
    for name, value in (("temperature", -1), ("top_p", 0), ("n", 129), ("max_tokens", 0)):
        assert not validator.is_valid(hello | {name: value})
        assert client.post("/v1/chat/completions", json=hello | {name: value}).status_code == 400
    for messages in ([], "Hi", [{"role": "wizard", "content": "Hi"}], [{"role": "user"}]):
        body = {"messages": messages}
        assert not validator.is_valid(body), json.dumps(body)
        assert client.post("/v1/chat/completions", json=body).status_code == 400
    assert validator.is_valid({"messages": [{"role": "user", "content": "Hi"}], "top_p": None})


def test_the_key_is_described_where_one_is_asked_for(engine: ScriptedEngine) -> None:
    """Oracle: OpenAPI's security requirement; health needs none."""
    client = TestClient(
        app_of(engine, api_key="secret"), headers={"Authorization": "Bearer secret"}
    )
    paths = document_of(client)["paths"]
    assert paths["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in paths["/health"]["get"]
