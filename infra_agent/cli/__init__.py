"""The command line: `infra-agent`, or `python -m infra_agent.cli`. The only home of typer and rich."""

from infra_agent.cli.edge import main

__all__ = ["main"]
