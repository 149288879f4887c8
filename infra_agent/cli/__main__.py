"""`python -m infra_agent.cli`."""

from infra_agent.cli import main

if __name__ == "__main__":
    main()
