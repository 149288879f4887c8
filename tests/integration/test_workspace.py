"""The campaign's repository against real git: what it takes over, what it refuses, what has no effect on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from sandboxes.git import GitMissing, WorkspaceError
from sandboxes.source import SourceDirty, SourceRefused
from sandboxes.workspace import (
    MAX_PATCH_BYTES,
    ChangedFile,
    PatchRefused,
    Repository,
    RepositoryLost,
    matches,
    protect,
)

GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_ALLOW_PROTOCOL": "file",
}
ODD_NAMES = ("with space.txt", 'with "quotes".txt', "with\nnewline.txt", "ünïcødé-日本.txt", "-dash.txt", "tab\there")


def git(directory: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(directory), *args], env=GIT_ENV, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def commit_all(directory: Path, message: str = "work") -> str:
    git(directory, "add", "--all", "--force", ".")
    git(directory, "commit", "--quiet", "--message", message)
    return git(directory, "rev-parse", "HEAD")


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file() and not p.is_symlink()
    }


FILES: dict[str, str | bytes] = {
    "kernels/kernel.c": "int f(void)\n{\n    return 1;\n}\n",
    "kernels/notes.txt": "nothing\n",
    "tests/test_kernel.py": "assert True\n",
    "launch.toml": "threads = 2\n",
    "answers/solution.patch": "secret\n",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    write(directory, FILES)
    git(directory, "init", "--quiet", "--template=")
    commit_all(directory)
    return directory


@pytest.fixture
def create(tmp_path: Path) -> Callable[..., tuple[Repository, str, str]]:
    def make(source: Path, hidden: tuple[str, ...] = ("answers",)) -> tuple[Repository, str, str]:
        return Repository.create(tmp_path / "campaign" / "repo.git", source, hidden)

    return make


def unchanged(tree: Path) -> None:
    """An edit that edits nothing."""


def modification(path: str, before: str, after: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{before}\n+{after}\n"


def addition(path: str, content: str = "x", mode: str = "100644") -> str:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{content}\n"
    )


KERNEL_PATCH = """\
--- a/kernels/kernel.c
+++ b/kernels/kernel.c
@@ -1,4 +1,4 @@
 int f(void)
 {
-    return 1;
+    return 2;
 }
"""

# The first commit.


def test_base_holds_the_tree_and_no_history(
    source: Path, tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    write(source, {"kernels/kernel.c": "int f(void) { return 42; }\n"})
    head = commit_all(source, "the upstream fix")
    repository, base, origin = create(source)
    assert origin == head
    repository.checkout(base, tmp_path / "out")
    found = files_of(tmp_path / "out")
    assert found["kernels/kernel.c"] == b"int f(void) { return 42; }\n"
    assert git(repository.path, "rev-list", "--all", "--count") == "1"
    objects = git(repository.path, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert objects.count("blob") == len(found)
    assert not list((tmp_path / "out").rglob(".git"))


def test_hidden_paths_are_not_in_the_repository_at_all(
    source: Path, tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    write(source, {"deep/answers/x.txt": "visible\n", "keys/a.key": "secret", "keys/sub/b.key": "secret"})
    commit_all(source)
    repository, base, _ = create(source, ("answers", "keys/*", "launch.toml"))
    repository.checkout(base, tmp_path / "out")
    assert set(files_of(tmp_path / "out")) == {
        "kernels/kernel.c",
        "kernels/notes.txt",
        "tests/test_kernel.py",
        "deep/answers/x.txt",
    }
    objects = git(repository.path, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)")
    blobs = [line.split()[1] for line in objects.splitlines() if line.startswith("blob")]
    assert len(blobs) == 4
    assert not any("secret" in git(repository.path, "cat-file", "blob", blob) for blob in blobs)


def test_dirty_tree_is_refused_and_named(source: Path, create: Callable[..., tuple[Repository, str, str]]) -> None:
    write(source, {"launch.toml": "threads = 3\n", "new file.txt": "x"})
    with pytest.raises(SourceDirty, match=r"launch\.toml") as caught:
        create(source)
    assert "new file.txt" in str(caught.value)


@pytest.mark.parametrize("prepare", ["staged", "deleted", "untracked"])
def test_every_kind_of_dirt_is_refused(
    source: Path, prepare: str, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    if prepare == "staged":
        write(source, {"launch.toml": "threads = 3\n"})
        git(source, "add", "launch.toml")
    elif prepare == "deleted":
        (source / "launch.toml").unlink()
    else:
        write(source, {"extra/x": "x"})
    with pytest.raises(SourceDirty):
        create(source)


def test_many_dirty_files_are_not_all_listed(source: Path, create: Callable[..., tuple[Repository, str, str]]) -> None:
    write(source, {f"new{n}": "x" for n in range(30)})
    with pytest.raises(SourceDirty) as caught:
        create(source)
    assert len(str(caught.value).splitlines()) == 12


def test_ignored_files_are_neither_dirt_nor_part_of_the_target(
    source: Path, tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    write(source, {".gitignore": "build/\n"})
    commit_all(source)
    write(source, {"build/kernel.o": "object"})
    repository, base, _ = create(source)
    repository.checkout(base, tmp_path / "out")
    assert "build/kernel.o" not in files_of(tmp_path / "out")


def test_target_in_a_folder_of_a_bigger_repository(
    source: Path, tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    write(source, {"outside.txt": "not committed"})
    repository, base, origin = create(source / "kernels")
    repository.checkout(base, tmp_path / "out")
    assert set(files_of(tmp_path / "out")) == {"kernel.c", "notes.txt"}
    assert origin == git(source, "rev-parse", "HEAD")
    write(source, {"kernels/notes.txt": "changed"})
    with pytest.raises(SourceDirty, match=r"kernels/notes\.txt"):
        Repository.create(tmp_path / "second", source / "kernels")


def test_target_under_no_version_control(tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]) -> None:
    directory = tmp_path / "plain"
    write(directory, {**FILES, "__pycache__/x.pyc": b"\0", "kernels/.hidden": "x"})
    (directory / "link").symlink_to("kernels/kernel.c")
    repository, base, origin = create(directory)
    assert origin == f"tree:{repository.tree(base)}"
    repository.checkout(base, tmp_path / "out")
    assert set(files_of(tmp_path / "out")) == {*FILES, "kernels/.hidden"} - {"answers/solution.patch"}
    assert (tmp_path / "out" / "link").readlink() == Path("kernels/kernel.c")


def test_repository_without_a_commit_counts_as_no_version_control(
    tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    directory = tmp_path / "fresh"
    write(directory, {"a.txt": "a"})
    git(directory, "init", "--quiet", "--template=")
    _, _, origin = create(directory)
    assert origin.startswith("tree:")


def test_broken_repository_is_not_taken_for_no_repository(
    source: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    (source / ".git" / "index").write_bytes(b"not an index")
    with pytest.raises(SourceRefused, match="index"):
        create(source)


def test_directory_that_does_not_exist_is_named(
    tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    with pytest.raises(SourceRefused, match="nowhere is not a directory"):
        create(tmp_path / "nowhere")


def test_empty_target_is_refused(tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceRefused, match="empty holds no files"):
        create(tmp_path / "empty")


def test_odd_file_names_survive(tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]) -> None:
    directory = tmp_path / "odd"
    write(directory, {f"sub/{name}": f"{n}\n" for n, name in enumerate(ODD_NAMES)})
    git(directory, "init", "--quiet", "--template=")
    commit_all(directory)
    repository, base, _ = create(directory)
    repository.checkout(base, tmp_path / "out")
    assert set(files_of(tmp_path / "out")) == {f"sub/{name}" for name in ODD_NAMES}


def test_file_name_that_is_not_utf8_survives(
    tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    directory = tmp_path / "latin"
    directory.mkdir()
    (directory / os.fsdecode(b"caf\xe9.c")).write_text("x")
    git(directory, "init", "--quiet", "--template=")
    commit_all(directory)
    repository, base, _ = create(directory)
    repository.checkout(base, tmp_path / "out")
    assert [os.fsencode(p.name) for p in (tmp_path / "out").iterdir()] == [b"caf\xe9.c"]


def test_links_inside_the_target_are_kept(
    source: Path, tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    (source / "current").symlink_to("kernels")
    (source / "kernels" / "up").symlink_to("../launch.toml")
    commit_all(source)
    repository, base, _ = create(source)
    repository.checkout(base, tmp_path / "out")
    assert (tmp_path / "out" / "current").readlink() == Path("kernels")
    assert (tmp_path / "out" / "kernels" / "up").read_text() == "threads = 2\n"


@pytest.mark.parametrize("leads", ["/etc/hostname", "../../elsewhere", "kernels/../../up"])
def test_link_that_leads_out_of_the_target_is_named(
    source: Path, leads: str, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    (source / "model").symlink_to(leads)
    commit_all(source)
    with pytest.raises(SourceRefused, match="leads out of the target"):
        create(source)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_file_is_named_and_never_waited_for(
    tmp_path: Path, kind: str, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    directory = tmp_path / "plain"
    write(directory, FILES)
    path = directory / "kernels" / "odd"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    with pytest.raises(SourceRefused, match=r"kernels/odd can't be read \(it is not a regular file\)"):
        create(directory)
    assert not (tmp_path / "campaign" / "repo.git").exists()
    assert Repository.create(tmp_path / "second", directory, ("kernels/odd",))


def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    """In a child of its own, since root may read everything."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        write(directory, {"file/secret.c": "x", "directory/inside/secret.c": "x"})
        (directory / "file" / "secret.c").chmod(0)
        (directory / "directory" / "inside").chmod(0)
        program = (
            "import encodings.ascii, os, sys, tempfile\nfrom pathlib import Path\n"
            "from sandboxes.source import SourceRefused\nfrom sandboxes.workspace import Repository\n"
            "if os.geteuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "for name in ('file', 'directory'):\n"
            "    try:\n        Repository.create(Path(tempfile.mkdtemp()) / 'repo', Path(sys.argv[1]) / name)\n"
            "    except SourceRefused as error:\n        print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, check=False)
        (directory / "directory" / "inside").chmod(0o755)
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert "file/secret.c can't be read (Permission denied)" in first
    assert "directory/inside can't be read (Permission denied)" in second


def test_without_git_the_remedy_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(GitMissing, match="apt-get install git"):
        create(source)


def test_a_place_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match=r"file/repo: a part of this path is a file.*choose another path"):
        Repository.create(tmp_path / "file" / "repo", source)


@pytest.mark.parametrize("damage", ["all", "objects", "HEAD"])
def test_a_lost_repository_says_that_nothing_can_be_resumed(
    campaign: tuple[Repository, str], tmp_path: Path, damage: str
) -> None:
    repository, base = Repository(campaign[0].path), campaign[1]
    if damage == "HEAD":
        (repository.path / "HEAD").unlink()
    else:
        shutil.rmtree(repository.path if damage == "all" else repository.path / "objects")
    for _ in range(2):  # a failed checkout leaves nothing that passes for a tree
        with pytest.raises(RepositoryLost, match="can't be resumed: start anew"):
            repository.checkout(base, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    with pytest.raises(RepositoryLost):
        repository.tree(base)
    with pytest.raises(RepositoryLost):
        repository.diff(base, base)


def test_submodule_is_part_of_the_target_once_checked_out(
    source: Path, tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    library = tmp_path / "library"
    write(library, {"lib.c": "int g;\n"})
    git(library, "init", "--quiet", "--template=")
    commit_all(library)
    allowed = ("-c", "protocol.file.allow=always")
    git(source, *allowed, "submodule", "--quiet", "add", str(library), "third/lib")
    commit_all(source)
    repository, base, _ = create(source)
    repository.checkout(base, tmp_path / "out")
    assert files_of(tmp_path / "out")["third/lib/lib.c"] == b"int g;\n"
    git(source, "submodule", "--quiet", "deinit", "--force", "third/lib")
    with pytest.raises(SourceRefused, match="third/lib is a submodule that is not checked out"):
        Repository.create(tmp_path / "second", source)


# The user's and the target's git settings.

HOSTILE_ATTRIBUTES = """\
* text=auto eol=crlf ident
*.c filter=shout diff=shout
tests/ export-ignore
*.txt export-subst -diff
*.py working-tree-encoding=UTF-16
"""


def test_attributes_of_the_target_change_nothing(
    source: Path, tmp_path: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    exact: dict[str, str | bytes] = {
        "crlf.c": b"a\r\nb\r\n",
        "mixed.c": b"a\r\nb\n",
        "ident.c": b"/* $Id$ */\n",
        "subst.txt": b"$Format:%H$\n",
        ".gitattributes": HOSTILE_ATTRIBUTES,
    }
    write(source, exact)
    (source / ".git" / "info").mkdir(exist_ok=True)
    (source / ".git" / "info" / "attributes").write_text("* -text -filter -working-tree-encoding\n")
    commit_all(source)
    repository, base, _ = create(source)
    repository.checkout(base, tmp_path / "out")
    found = files_of(tmp_path / "out")
    assert found == {name: (source / name).read_bytes() for name in found}
    assert {*exact, "tests/test_kernel.py"} <= set(found)

    patch = "--- a/mixed.c\n+++ b/mixed.c\n@@ -1,2 +1,2 @@\n a\r\n-b\n+c\n"
    commit = repository.apply(base, patch + KERNEL_PATCH, unchanged)
    repository.checkout(commit, tmp_path / "changed")
    assert (tmp_path / "changed" / "mixed.c").read_bytes() == b"a\r\nc\n"
    assert (tmp_path / "changed" / "kernels" / "kernel.c").read_bytes().count(b"\r") == 0
    assert (tmp_path / "changed" / "ident.c").read_bytes() == b"/* $Id$ */\n"
    assert [c.path for c in repository.changed(base, commit)] == ["kernels/kernel.c", "mixed.c"]
    assert "-    return 1;\n+    return 2;" in repository.diff(base, commit)


def test_settings_of_the_user_have_no_effect(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    create: Callable[..., tuple[Repository, str, str]],
) -> None:
    home = tmp_path / "home"
    witness = tmp_path / "ran"
    hook = f"#!/bin/sh\necho ran >> {witness}\ncat\n"
    write(
        home,
        {
            "hooks/post-commit": hook,
            "hooks/reference-transaction": hook,
            "template/hooks/post-index-change": hook,
            "shout": hook,
            "attributes": "* filter=shout diff=shout text eol=crlf\n",
            ".gitconfig": f"""
[core]
    hooksPath = {home}/hooks
    attributesFile = {home}/attributes
    autocrlf = true
    fsmonitor = {home}/shout
    quotePath = true
    excludesFile = {home}/attributes
[init]
    templateDir = {home}/template
[filter "shout"]
    clean = {home}/shout
    smudge = {home}/shout
    required = true
[diff]
    external = {home}/shout
    noprefix = true
    mnemonicPrefix = true
    context = 0
[diff "shout"]
    textconv = {home}/shout
[tar]
    umask = 0777
[apply]
    whitespace = error
[commit]
    gpgSign = true
[user]
    useConfigOnly = true
""",
        },
    )
    for script in (*home.glob("hooks/*"), *home.glob("template/hooks/*"), home / "shout"):
        script.chmod(0o755)
    quiet, quiet_base, _ = Repository.create(tmp_path / "quiet", source)
    quiet_commit = quiet.apply(quiet_base, KERNEL_PATCH, unchanged)

    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(home / "template"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(home / "shout"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "somebody")
    repository, base, _ = create(source, ())
    commit = repository.apply(base, KERNEL_PATCH, unchanged)
    assert (base, commit) == (quiet_base, quiet_commit)
    assert repository.diff(base, commit) == quiet.diff(base, commit)
    assert repository.diff(base, commit).startswith("diff --git a/kernels/kernel.c b/kernels/kernel.c")
    repository.checkout(commit, tmp_path / "out")
    assert (tmp_path / "out" / "kernels" / "kernel.c").stat().st_mode & 0o777 == 0o644
    assert not witness.exists()


# Changes.


@pytest.fixture
def campaign(source: Path, create: Callable[..., tuple[Repository, str, str]]) -> tuple[Repository, str]:
    repository, base, _ = create(source)
    return repository, base


def test_change_is_applied_and_told(campaign: tuple[Repository, str], tmp_path: Path) -> None:
    repository, base = campaign

    def edit(tree: Path) -> None:
        (tree / "launch.toml").write_text("threads = 4\n")

    commit = repository.apply(base, KERNEL_PATCH, edit)
    assert repository.changed(base, commit) == [
        ChangedFile("kernels/kernel.c", "M", "100644", "100644"),
        ChangedFile("launch.toml", "M", "100644", "100644"),
    ]
    repository.checkout(commit, tmp_path / "out")
    assert b"return 2" in files_of(tmp_path / "out")["kernels/kernel.c"]
    assert git(repository.path, "rev-parse", f"{commit}^") == base


def test_same_change_of_the_same_parent_is_the_same_commit(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign
    first = repository.apply(base, KERNEL_PATCH, unchanged)
    assert repository.apply(base, KERNEL_PATCH.rstrip("\n"), unchanged) == first

    def edit(tree: Path) -> None:
        path = tree / "kernels" / "kernel.c"
        path.write_text(path.read_text().replace("return 1", "return 2"))

    assert repository.apply(base, "", edit) == first
    other = repository.apply(base, modification("launch.toml", "threads = 2", "threads = 3"), unchanged)
    assert other != first
    assert repository.apply(other, KERNEL_PATCH, unchanged) != first


def test_diff_of_a_change_makes_the_same_change_again(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign

    def edit(tree: Path) -> None:
        for n, name in enumerate(ODD_NAMES):
            (tree / name).write_text(f"{n}\n")
        (tree / "no newline").write_bytes(b"a\nb")
        (tree / "crlf").write_bytes(b"a\r\nb\r\n")
        (tree / "trailing").write_bytes(b"a \t\n\n\n")
        (tree / "kernels" / "notes.txt").unlink()

    commit = repository.apply(base, "", edit)
    assert {c.path for c in repository.changed(base, commit)} >= set(ODD_NAMES)
    assert repository.apply(base, repository.diff(base, commit), unchanged) == commit

    def edit_again(tree: Path) -> None:
        for name in (*ODD_NAMES, "no newline", "crlf"):
            (tree / name).write_bytes((tree / name).read_bytes() + b"more\r\n")

    later = repository.apply(commit, "", edit_again)
    assert repository.apply(commit, repository.diff(commit, later), unchanged) == later


@pytest.mark.parametrize(
    "patch",
    [
        modification("kernels/notes.txt", "something else", "x"),
        modification("kernels/absent.txt", "nothing", "x"),
        addition("kernels/notes.txt"),
        KERNEL_PATCH.replace("@@ -1,4 +1,4 @@", "@@ -1,9 +1,9 @@"),
        "this is no patch\n",
        "```diff\nnothing\n```",
        KERNEL_PATCH.replace("\n", "\r\n"),
    ],
    ids=["context", "absent file", "file exists", "cut off", "prose", "fence", "crlf"],
)
def test_patch_that_does_not_apply_is_refused(campaign: tuple[Repository, str], patch: str) -> None:
    repository, base = campaign
    with pytest.raises(PatchRefused, match="does not apply"):
        repository.apply(base, patch, unchanged)


def test_patch_applies_whole_or_not_at_all(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign
    with pytest.raises(PatchRefused):
        repository.apply(base, KERNEL_PATCH + modification("launch.toml", "threads = 9", "threads = 1"), unchanged)
    assert git(repository.path, "for-each-ref", "--format=%(objectname)").split() == [base]


@pytest.mark.parametrize(
    "path",
    ["../escaped.txt", "kernels/../../escaped.txt", "{outside}", ".git/config", ".git/hooks/x", "kernels/.git/x"],
)
def test_patch_can_not_reach_outside_the_tree(campaign: tuple[Repository, str], tmp_path: Path, path: str) -> None:
    repository, base = campaign
    outside = tmp_path / "escaped.txt"
    with pytest.raises(PatchRefused):
        repository.apply(base, addition(path.format(outside=outside)), unchanged)
    assert not outside.exists()


def test_patch_can_not_write_through_a_link(campaign: tuple[Repository, str], tmp_path: Path) -> None:
    repository, base = campaign
    (tmp_path / "outside").mkdir()
    link = addition("door", str(tmp_path / "outside"), "120000").replace(
        "+" + str(tmp_path / "outside") + "\n", "+" + str(tmp_path / "outside") + "\n\\ No newline at end of file\n"
    )
    with pytest.raises(PatchRefused):
        repository.apply(base, link + addition("door/x.txt"), unchanged)
    assert list((tmp_path / "outside").iterdir()) == []


def test_edit_of_the_launch_file_can_not_write_through_a_link(campaign: tuple[Repository, str], tmp_path: Path) -> None:
    """The patch turns the launch file into a link before the knobs are written into it."""
    repository, base = campaign
    outside = tmp_path / "outside.toml"
    outside.write_text("mine = 1\n")
    patch = (
        "diff --git a/launch.toml b/launch.toml\ndeleted file mode 100644\n--- a/launch.toml\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-threads = 2\n"
        "diff --git a/launch.toml b/launch.toml\nnew file mode 120000\n--- /dev/null\n+++ b/launch.toml\n"
        f"@@ -0,0 +1 @@\n+{outside}\n\\ No newline at end of file\n"
    )

    def edit(tree: Path) -> None:
        (tree / "launch.toml").write_text("threads = 4\n")

    with pytest.raises(PatchRefused):
        repository.apply(base, patch, edit)
    assert outside.read_text() == "mine = 1\n"


def test_link_can_not_be_added_even_inside_the_tree(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign
    patch = addition("kernels/alias.c", "kernel.c", "120000").replace(
        "+kernel.c\n", "+kernel.c\n\\ No newline at end of file\n"
    )
    with pytest.raises(PatchRefused, match="symbolic links"):
        repository.apply(base, patch, unchanged)


def test_submodule_can_not_be_added(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign
    patch = addition("kernels/lib", f"Subproject commit {'a' * 40}", "160000")
    try:
        commit = repository.apply(base, patch, unchanged)
    except PatchRefused:
        return
    assert protect(repository.changed(base, commit), ("kernels",), ()) is not None


def test_binary_patch_is_refused(campaign: tuple[Repository, str], source: Path) -> None:
    repository, base = campaign
    (source / "kernels" / "blob.so").write_bytes(bytes(range(256)) * 8)
    git(source, "add", "kernels/blob.so")
    for patch in (git(source, "diff", "--cached", "--binary"), git(source, "diff", "--cached")):
        with pytest.raises(PatchRefused, match="binary"):
            repository.apply(base, patch + "\n", unchanged)


def test_huge_patch_is_refused(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign
    with pytest.raises(PatchRefused, match="larger than 1024 KiB"):
        repository.apply(base, addition("kernels/big.c", "é" * (MAX_PATCH_BYTES // 2)), unchanged)
    lines = "".join(f"+{n:060d}\n" for n in range(16_000))
    patch = f"--- /dev/null\n+++ b/kernels/big.c\n@@ -0,0 +1,16000 @@\n{lines}"
    commit = repository.apply(base, patch, unchanged)
    assert repository.changed(base, commit) == [ChangedFile("kernels/big.c", "A", "000000", "100644")]


def test_refused_edit_leaves_no_commit(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign

    def edit(tree: Path) -> None:
        raise PatchRefused("threads = 400 is outside 1..64")

    with pytest.raises(PatchRefused, match="400"):
        repository.apply(base, KERNEL_PATCH, edit)
    assert git(repository.path, "for-each-ref", "--format=%(objectname)").split() == [base]


def test_commits_survive_garbage_collection(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign
    commit = repository.apply(base, KERNEL_PATCH, unchanged)
    git(repository.path, "gc", "--quiet", "--prune=now")
    assert repository.tree(commit) != repository.tree(base)


def test_unknown_commit_is_a_failure_of_the_platform(campaign: tuple[Repository, str], tmp_path: Path) -> None:
    repository, _ = campaign
    with pytest.raises(RepositoryLost, match="failed"):
        repository.checkout("0" * 40, tmp_path / "out")
    with pytest.raises(RepositoryLost):
        repository.apply("0" * 40, KERNEL_PATCH, unchanged)


# The gate.

EDITABLE = ("kernels", "launch.toml", "configs/*.toml")


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (modification("tests/test_kernel.py", "assert True", "assert 1"), "not editable; the target allows: kernels"),
        (addition("kernels/conftest.py"), "never editable"),
        (addition("kernels/.gitattributes"), "never editable"),
        (addition("kernels/.github/workflows/ci.yml"), "never editable"),
        (addition("kernels/.gitlab-ci.yml"), "never editable"),
        (addition("kernels/Jenkinsfile"), "never editable"),
        (addition("kernels/.githooks/pre-commit"), "never editable"),
        (addition("kernels/sitecustomize.py"), "never editable"),
        (addition("kernels/run.sh", mode="100755"), "executable"),
        ("diff --git a/launch.toml b/launch.toml\nold mode 100644\nnew mode 100755\n", "executable"),
        (modification("kernels/notes.txt", "nothing", "x"), "protected by the target"),
        (addition("kernels/deep/secret/x.c"), "protected by the target"),
        (addition("configs/sub/x.toml"), "not editable"),
        (addition("kernels2/x.c"), "not editable"),
        (addition("other.toml"), "not editable"),
    ],
)
def test_gate_refuses(campaign: tuple[Repository, str], patch: str, reason: str) -> None:
    repository, base = campaign
    commit = repository.apply(base, KERNEL_PATCH + patch, unchanged)
    refusal = protect(repository.changed(base, commit), EDITABLE, ("kernels/notes.txt", "kernels/*/secret"))
    assert refusal is not None
    assert reason in refusal


@pytest.mark.parametrize(
    "patch",
    [
        KERNEL_PATCH,
        addition("kernels/new/deep.c"),
        addition("configs/fast.toml"),
        modification("launch.toml", "threads = 2", "threads = 3"),
        "--- a/kernels/kernel.c\n+++ /dev/null\n@@ -1,4 +0,0 @@\n-int f(void)\n-{\n-    return 1;\n-}\n",
    ],
)
def test_gate_allows(campaign: tuple[Repository, str], patch: str) -> None:
    repository, base = campaign
    commit = repository.apply(base, patch, unchanged)
    assert protect(repository.changed(base, commit), EDITABLE, ("kernels/notes.txt",)) is None


def test_protected_file_can_be_neither_deleted_nor_renamed(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign
    rename = (
        "diff --git a/tests/test_kernel.py b/kernels/test_kernel.py\nsimilarity index 100%\n"
        "rename from tests/test_kernel.py\nrename to kernels/test_kernel.py\n"
    )
    deletion = "--- a/tests/test_kernel.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-assert True\n"
    for patch in (rename, deletion):
        commit = repository.apply(base, patch, unchanged)
        refusal = protect(repository.changed(base, commit), EDITABLE, ())
        assert refusal is not None
        assert "tests/test_kernel.py is not editable" in refusal


def test_change_that_changes_nothing_is_refused(campaign: tuple[Repository, str]) -> None:
    repository, base = campaign
    commit = repository.apply(base, "", unchanged)
    assert protect(repository.changed(base, commit), EDITABLE, ()) == "the change changes nothing"


def test_executable_file_may_be_changed_but_not_made(
    source: Path, create: Callable[..., tuple[Repository, str, str]]
) -> None:
    write(source, {"kernels/run.sh": "echo 1\n"})
    (source / "kernels" / "run.sh").chmod(0o755)
    commit_all(source)
    repository, base, _ = create(source)
    commit = repository.apply(base, modification("kernels/run.sh", "echo 1", "echo 2"), unchanged)
    assert repository.changed(base, commit) == [ChangedFile("kernels/run.sh", "M", "100755", "100755")]
    assert protect(repository.changed(base, commit), EDITABLE, ()) is None


@pytest.mark.parametrize(
    ("path", "patterns", "expected"),
    [
        ("a.c", ("a.c",), True),
        ("src/a.c", ("src",), True),
        ("src/deep/a.c", ("src/",), True),
        ("src/a.c", ("src/*.c",), True),
        ("src/deep/a.c", ("src/*.c",), False),
        ("src/deep/a.c", ("src/*",), True),
        ("src/a.c", ("*.c",), False),
        ("a.c", ("*.c",), True),
        ("src2/a.c", ("src",), False),
        ("src/a.c", ("a.c",), False),
        ("anything/at/all", (".",), True),
        ("anything/at/all", ("*",), True),
        ("a.c", (), False),
    ],
)
def test_pattern_covers_what_it_names_and_what_lies_below(path: str, patterns: tuple[str, ...], expected: bool) -> None:
    assert matches(PurePosixPath(path), patterns) is expected
