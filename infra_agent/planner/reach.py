"""Whether the model endpoint answers, without paying for a completion."""

from __future__ import annotations

import openai
from openai import OpenAI

from infra_agent.errors import ModelUnavailable
from infra_agent.settings import Settings

TIMEOUT_S = 10.0


def reach(settings: Settings) -> str:
    """Ask the endpoint for its models; returns what it said in a few words.

    Raises ModelUnavailable with the endpoint and the cause. An endpoint without a list of models is reached.
    """
    with OpenAI(
        api_key=settings.openai_api_key or "none",
        base_url=settings.openai_base_url or None,
        max_retries=0,
        timeout=TIMEOUT_S,
    ) as client:
        address = str(client.base_url)
        try:
            known = {model.id for model in client.models.list()}
        except (openai.NotFoundError, openai.APIResponseValidationError):
            return f"{address} answers, but lists no models"
        except openai.APIStatusError as error:
            raise ModelUnavailable(f"{address} answers with status {error.status_code}") from error
        except openai.OpenAIError as error:
            raise ModelUnavailable(f"{address} can't be reached: {error}") from error
    if settings.model in known:
        return f"{address} offers {settings.model}"
    return f"{address} answers; {settings.model} is not among its {len(known)} models"
