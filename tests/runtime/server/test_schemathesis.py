"""Requests drawn from /openapi.json by schemathesis: every answer is one that the document knows.

Bounded: some requests for each route, in this process, always the same. One check is left out: that
every body which follows its schema is accepted. Rules between fields (a tool that must be called is
one of the tools, a prompt fits the context with its completion) are no part of JSON schema; what
breaks one is a 400 that names the field.
"""

import schemathesis
from conftest import ScriptedEngine, app_of
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

ENGINE = ScriptedEngine()
ENGINE.max_model_len = 4000
schema = schemathesis.openapi.from_asgi("/openapi.json", app_of(ENGINE))


@schema.parametrize()
@settings(
    max_examples=8,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_those_that_the_document_describes(case: schemathesis.Case) -> None:
    """Oracle: the document."""
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
