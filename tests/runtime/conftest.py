"""One artifact for all tests that need one: its programs are traced, lowered and compiled once."""

from pathlib import Path

import pytest
from golden import golden

from runtime.aot.export import export_artifact
from runtime.config import EngineConfig, ExportConfig

BLOCK_BYTES = 2 * 4 * 3 * 10 * 3 * 4  # K and V, slots, heads, dimensions, layers, float32


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder."""
    return golden("qwen3").write(tmp_path_factory.mktemp("artifact") / "qwen3")


@pytest.fixture(scope="session")
def sign_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a private key; that of its public one lies beside it, ending in .pub."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = tmp_path_factory.mktemp("keys") / "key.pem"
    key = Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(pem, public))
    return path


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, sign_key: Path) -> Path:
    """A signed artifact with weights: sixty blocks of four for six sequences of up to 96 tokens, so
    that some are preempted when all run.
    """
    config = EngineConfig(
        model=str(tiny_model),
        max_num_seqs=6,
        block_size=4,
        prefill_chunk_size=16,
        kv_cache_gb=60.5 * BLOCK_BYTES / 2**30,
    )
    folder = tmp_path_factory.mktemp("exported") / "tiny"
    wanted = ExportConfig(export=str(folder), include_weights=True, sign_key=str(sign_key))
    return export_artifact(config, wanted, lambda *_: None)
