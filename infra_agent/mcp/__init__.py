"""Campaigns for a coding agent, over the Model Context Protocol. The only home of the `mcp` package."""
