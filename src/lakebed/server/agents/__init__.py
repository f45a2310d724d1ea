"""The fourth door: tools for agents at `/mcp`, over the table of operations (docs/design/0014-agents.md).

    curl -u "$KEY:$SECRET" "http://127.0.0.1:8000/mcp?branch=lake/trial" -H "content-type: application/json" \\
        -d '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
"""

from .door import PATH, AgentsDoor

__all__ = ["PATH", "AgentsDoor"]
