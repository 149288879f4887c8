"""What a planner may look at: the parent's files, the target's history, the journal, the evidence behind a signal.

Everything is quoted and bounded. A refusal says what can be asked instead.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence

from feedback.explanation import explain
from feedback.inventory import FileRead, contents
from feedback.readers import Unreadable
from infra_agent import citation
from infra_agent.domain import Experiment
from infra_agent.planner import Context
from infra_agent.planner.evidence import near_signals
from infra_agent.planner.fence import fence
from infra_agent.planner.forms import ListFiles, ReadEvidence, ReadFile, ReadHistory, ReadJournal, SearchCode
from infra_agent.planner.prompt import entry, journal
from infra_agent.planner.tree import NotReadable, Tree

MAX_LISTED = 200
MAX_LINES = 400
MAX_HITS = 60
MAX_HIT_CHARACTERS = 200
MAX_SEARCHED_BYTES = 32 << 20
JOURNAL_LINES = 200
MAX_COMMITS = 40
SHOWN_CHARACTERS = 16_000
_GIT_TIMEOUT_S = 30
_GIT_ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C", "HOME": "/nonexistent"}


class Reader:
    """The reading tools in one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tree = Tree(context.parent_tree, context.spec)

    def see(self, context: Context) -> None:
        """Read from this context from now on: the journal has grown."""
        self._context = context

    def tools(self) -> dict[str, Callable[..., str]]:
        """Name of the tool -> what carries it out; each raises NotReadable."""
        return {
            "list_files": self.list_files,
            "read_file": self.read_file,
            "search_code": self.search_code,
            "read_history": self.read_history,
            "read_journal": self.read_journal,
            "read_evidence": self.read_evidence,
        }

    def list_files(self, given: ListFiles) -> str:
        """The files that match a glob."""
        found = [str(path) for path in self._tree.files(given.glob)]
        if len(found) > MAX_LISTED:
            found[MAX_LISTED:] = [f"... and {len(found) - MAX_LISTED} more; use a narrower glob"]
        return fence("\n".join(found) or "no file matches", f"files matching {given.glob}", SHOWN_CHARACTERS)

    def read_file(self, given: ReadFile) -> str:
        """Lines of a file."""
        lines = self._tree.text(given.path).split("\n")
        last = min(given.end or len(lines), given.start + MAX_LINES - 1, len(lines))
        if given.start > len(lines):
            raise NotReadable(f"{given.path} has {len(lines)} lines")
        text = "\n".join(lines[given.start - 1 : last])
        return fence(text, f"{given.path}, lines {given.start} to {last} of {len(lines)}", SHOWN_CHARACTERS)

    def search_code(self, given: SearchCode) -> str:
        """Lines that hold a text."""
        hits: list[str] = []
        searched = 0
        for path in self._tree.files(given.glob):
            try:
                text = self._tree.text(str(path))
            except NotReadable:  # too large or not text: nothing to search in
                continue
            searched += len(text)
            for number, line in enumerate(text.splitlines(), 1) if given.text in text else ():
                if given.text in line:
                    hits.append(f"{path}:{number}: {line.strip()[:MAX_HIT_CHARACTERS]}")
            if len(hits) >= MAX_HITS or searched > MAX_SEARCHED_BYTES:
                hits = [*hits[:MAX_HITS], "... there may be more; search for a longer text or in fewer files"]
                break
        return fence("\n".join(hits) or "not found", f"search for {given.text}", SHOWN_CHARACTERS)

    def read_history(self, given: ReadHistory) -> str:
        """Commits that touch the target, none later than the campaign's start, without hidden paths and authors. Of a
        repository that the target is only a directory of, nothing else is told."""
        context = self._context
        # The second form leaves out what lies below a directory that a pattern such as `secret?` matches.
        unseen = (f":(exclude){p}{below}" for p in context.spec.unseen for below in ("", "/*"))
        base, within = context.source_commit, [".", *unseen]
        if given.path:
            within[0] = f":(literal){self._tree.path(given.path)}"
        if not _is_commit(base) or (not (context.source / ".git").exists() and not _git(context, "rev-parse", "HEAD")):
            raise NotReadable("the target has no git history")
        wanted = base
        if given.commit:
            if not _is_commit(given.commit) or _git(context, "merge-base", "--is-ancestor", given.commit, base) is None:
                raise NotReadable(f"{given.commit[:60]!r} is no commit of the history up to the campaign's start")
            wanted = given.commit
            how = ("--no-color", "--no-ext-diff", "--no-textconv", "--relative", "--stat", "--patch")
            shown = _git(context, "show", *how, "--format=%h %as%n%n%B", wanted, "--", *within)
            return fence(shown or "nothing of it can be shown", f"commit {wanted}", SHOWN_CHARACTERS)
        listed = _git(context, "log", f"-{MAX_COMMITS}", "--format=%h %as %s", wanted, "--", *within)
        return fence(listed or "no commit touches this", "history", SHOWN_CHARACTERS)

    def read_journal(self, given: ReadJournal) -> str:
        """The journal, or one entry of it whole."""
        if given.number is None:
            return journal(self._context.journal, JOURNAL_LINES)
        found = next((e for e in self._context.journal.finished if e.number == given.number), None)
        if found is None:
            raise NotReadable(f"there is no finished experiment #{given.number}")
        return entry(found)

    def read_evidence(self, given: ReadEvidence) -> str:
        """The evidence behind a signal of this campaign, from the files that its experiment left behind."""
        found = citation.cited(self._context.journal.finished, given.id)
        if not found:
            near = near_signals(given.id, self._context)
            instead = f"; there are, for example, {near}" if near else ""
            raise NotReadable(f"no signal of this campaign has the id {given.id!r}{instead}")
        if len(found) > 1:
            raise NotReadable(citation.ambiguity(given.id, found))
        experiment, signal = found[0]
        if signal.rule_id == citation.HIDDEN:
            raise NotReadable("of a hidden probe nothing is told but whether it passed")
        said = explain(signal, self._files(experiment), citation.prefix(experiment))
        return fence(said, f"evidence of {found[0].id}", SHOWN_CHARACTERS)

    def _files(self, experiment: Experiment) -> Sequence[FileRead]:
        directory = self._context.runs / experiment.id
        try:
            return contents([directory]).read
        except (OSError, Unreadable):
            return ()


def _is_commit(text: str) -> bool:
    return 4 <= len(text) <= 64 and all(c in "0123456789abcdef" for c in text)


def _git(context: Context, *arguments: str) -> str | None:
    """What git says in the target's own repository; None if it refuses."""
    command = ["git", "-C", str(context.source), "-c", "core.quotePath=false", *arguments]
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **_GIT_ENVIRONMENT}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=_GIT_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
