"""The fourth door: tools for agents at `/mcp`, over the table of operations (docs/design/0014-agents.md)."""

from .door import PATH, AgentsDoor

__all__ = ["PATH", "AgentsDoor"]
