"""A model id of the Hugging Face hub -> a local folder, through huggingface_hub and its own cache
and settings.

It honours what that library honours (HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE) and knows
nothing about the files' content.
"""

import re
from pathlib import Path

from runtime.checkpoint.contract import CheckpointError

_HUB_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<revision>[\w./-]+))?")
_WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt"]
_UNWANTED = ["original/*", "consolidated*", "onnx/*", "openvino/*"]  # the same weights once more


def is_hub_id(model: str) -> bool:
    """Whether the text has the form org/name or org/name:revision."""
    return _HUB_ID.fullmatch(model) is not None


def download(model: str) -> Path:
    """The folder of a hub model, downloaded where the cache lacks it. CheckpointError says what to
    do instead.
    """
    # Imported here: 0.2 s of start-up that only models of the hub need to pay.
    from huggingface_hub import errors, snapshot_download

    match = _HUB_ID.fullmatch(model)
    if match is None:
        raise CheckpointError(f"{model!r} is not a hub id; write org/name or org/name:revision")
    repository, revision = match["repository"], match["revision"]
    try:
        folder = snapshot_download(
            repository, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
        )
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{repository} is gated: accept its terms on the hub with your account and set "
            "HF_TOKEN to a token of it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"{repository} has no revision {revision!r}; leave it out for the newest"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{repository} is not on the hub or not visible to you; check the spelling, or set "
            "HF_TOKEN for a private model"
        ) from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{model!r} is not a hub id: {error}") from error
    except OSError as error:  # HTTP errors, and LocalEntryNotFoundError without a network
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{repository} cannot be downloaded ({reason}). Without a network: give a local folder "
            "with --w or a file with --f; set HF_ENDPOINT to a mirror that can be reached; or "
            f"download it elsewhere (`hf download {repository}`), copy the cache here and set "
            "HF_HUB_OFFLINE=1"
        ) from error
    return Path(folder)
