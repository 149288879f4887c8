"""What a patch touches, whoever wrote it."""

from __future__ import annotations

from infra_agent.patches import Touched, touched

GIT = """\
diff --git a/src/cache.c b/src/cache.c
index 1111111..2222222 100644
--- a/src/cache.c
+++ b/src/cache.c
@@ -1,3 +1,3 @@
 int ways;
--- a counter, an expression of C
-int n = 0;
+int n = 1;
+++ n;
diff --git a/old.c b/old.c
deleted file mode 100644
index 2222222..0000000
--- a/old.c
+++ /dev/null
@@ -1 +0,0 @@
-gone
diff --git a/empty file b/empty file
new file mode 100644
index 0000000..e69de29
diff --git a/with space.c b/with space.c
new file mode 100644
index 0000000..3333333
--- /dev/null
+++ b/with space.c\t
@@ -0,0 +1 @@
+new
"""
BY_HAND = """\
--- kernel.c.orig\t2026-01-01 00:00:00
+++ kernel.c\t2026-01-02 00:00:00
@@ -1 +1,2 @@
-a
+b
+c
"""


def test_every_file_of_a_git_diff_is_named_once_and_only_content_is_counted() -> None:
    assert touched(GIT) == Touched(("src/cache.c", "old.c", "empty file", "with space.c"), 3, 3)


def test_a_diff_without_git_and_with_other_line_ends_is_read_too() -> None:
    assert touched(BY_HAND) == Touched(("kernel.c",), 2, 1)
    assert touched(GIT.replace("\n", "\r\n")).files == ("src/cache.c", "old.c", "with space.c")


def test_what_is_no_patch_names_no_files() -> None:
    assert touched("") == touched("nothing of that kind") == Touched((), 0, 0)
