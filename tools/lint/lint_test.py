#!/usr/bin/env python3
"""Tests the checks in this folder: they must report each bad example, and no good one."""

import pathlib
import shutil
import tempfile
import unittest

import check_clock
import check_includes
import check_shell
import check_words
import cpp_format


class Tree:
    """A small source tree, without git."""

    def __init__(self, files: dict[str, str]):
        self._folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self._folder.name)
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def __enter__(self) -> pathlib.Path:
        return self.root

    def __exit__(self, *_) -> None:
        self._folder.cleanup()


CORE = {
    "core/CMakeLists.txt": "add_subdirectory(artifact)\nadd_subdirectory(engine)\n",
    "base/status.h": "",
    "core/engine/engine.h": '#include "base/status.h"\n',
    "otel/api/trace.h": "#include <string>\n",
    "transport/transport.h": '#include "core/engine/engine.h"\n#include "otel/api/trace.h"\n',
    "rpc/call.h": '#include <grpcpp/client_context.h>\n#include "proto/daemon.grpc.pb.h"\n',
    "cli/CMakeLists.txt": "add_subdirectory(output)\nadd_subdirectory(commands)\n",
    "cli/commands/command.h": '#include "cli/output/output.h"\n',
    "cli/output/output.h": "",
    "tests/e2e/base.h": "",
    "tools/workshop/CMakeLists.txt": "add_subdirectory(cluster)\nadd_subdirectory(bench)\n",
    "tools/workshop/bench/bench.h": '#include "cli/output/output.h"\n#include "tools/workshop/cluster/cluster.h"\n',
    "tools/workshop/cluster/cluster.h": "",
}


def problems(**files: str) -> list[str]:
    with Tree(CORE | files) as root:
        return check_includes.Checker(root).run()


class CheckIncludes(unittest.TestCase):
    def check(self, name: str, include: str, reason: str) -> None:
        found = problems(**{name: f"// first line\n{include}\n"})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{name}:2: "), found)
        self.assertIn(reason, found[0])

    def test_a_tree_that_keeps_the_rules_is_good(self):
        self.assertEqual(problems(), [])

    def test_the_public_headers_are_the_clients(self):
        self.assertEqual(problems(**{"client/include/tensorcast/client.h": "",
                                     "cli/x.cc": '#include "tensorcast/client.h"\n'}), [])
        self.check("cli/x.cc", '#include "tensorcast/none.h"', "the file does not exist")

    def test_an_installed_header_includes_only_installed_ones(self):
        installed = "set(TENSORCAST_PUBLIC_HEADERS\n  base/time.h\n  client/include/tensorcast/client.h)\n"
        found = problems(**{"cmake/TensorCastInstall.cmake": installed, "base/time.h": "",
                            "client/include/tensorcast/client.h": '#include "base/time.h"\n#include "base/status.h"\n'})
        self.assertEqual(len(found), 1, found)
        self.assertIn("client.h:2: includes base/status.h: an installed header may include only", found[0])

    def test_upward_includes_between_layers(self):
        self.check("core/engine/x.cc", '#include "transport/transport.h"', "core/ may include base, otel/api")
        self.check("base/x.cc", '#include "otel/api/trace.h"', "nothing of ours")
        self.check("global_store/directory/x.cc", '#include "transport/transport.h"', "not transport/")
        self.check("client/x.cc", '#include "transport/transport.h"', "not transport/")
        self.check("rpc/x.cc", '#include "transport/transport.h"', "not transport/")
        self.check("core/engine/y.h", '#include "rpc/call.h"', "not rpc/")

    def test_callers_and_coordinators_use_no_disks_and_no_engine(self):
        self.assertEqual(problems(**{"rpc/x.cc": '#include "core/replica/replica.h"\n', "core/replica/replica.h": ""}), [])
        for own in ("rpc", "global_store", "client"):
            self.check(f"{own}/x.cc", '#include "core/engine/engine.h"', f"of core/, {own}/ may include core/artifact")

    def test_nothing_uses_tests(self):
        self.check("cli/commands/x.cc", '#include "tests/e2e/base.h"', "nothing outside tests/")
        self.check("core/engine/x_test.cc", '#include "tests/e2e/base.h"', "nothing outside tests/")

    def test_the_product_does_not_use_its_workshop(self):
        for own in ("cli/commands", "client", "daemon/app", "core/engine", "base"):
            self.check(f"{own}/x.cc", '#include "tools/workshop/cluster/cluster.h"', "not tools/workshop/")
        self.check("tools/workshop/x.cc", '#include "tests/e2e/base.h"', "nothing outside tests/")

    def test_tests_beside_the_code_may_use_other_layers(self):
        self.assertEqual(problems(**{"core/engine/x_test.cc": '#include "transport/transport.h"\n'}), [])

    def test_the_order_inside_a_layer(self):
        self.check("core/artifact/x.cc", '#include "core/engine/engine.h"', "stands above")
        self.check("core/new/x.cc", '#include "core/engine/engine.h"', "does not add both")
        self.check("cli/output/x.cc", '#include "cli/commands/command.h"', "cli/commands stands above cli/output")
        self.check("tools/workshop/cluster/x.cc", '#include "tools/workshop/bench/bench.h"', "bench stands above")

    def test_files_that_need_each_other(self):
        found = problems(**{"core/engine/a.h": '#include "core/engine/b.h"\n', "core/engine/b.h": "",
                            "core/engine/b.cc": '#include "core/engine/b.h"\n#include "core/engine/a.h"\n'})
        self.assertEqual(len(found), 1, found)
        self.assertIn("core/engine/b.cc:2: includes core/engine/a.h: files that need each other: a -> b -> a", found[0])

    def test_messages_and_grpc_stay_out_of_core_and_transport(self):
        self.check("core/engine/x.cc", "#include <grpcpp/grpcpp.h>", "neither gRPC nor protobuf")
        self.check("transport/x.cc", "#include <google/protobuf/message.h>", "neither gRPC nor protobuf")
        found = problems(**{"core/engine/x.cc": '#include "proto/types.pb.h"\n'})
        self.assertTrue(any("neither gRPC nor protobuf" in problem for problem in found), found)

    def test_third_party_headers_stay_in_their_folders(self):
        self.check("transport/x.cc", "#include <ucp/api/ucp.h>", "UCX belongs to transport/ucx")
        self.check("core/engine/x.cc", "#include <cuda_runtime_api.h>", "CUDA belongs to core/device")
        self.check("global_store/directory/x.cc", "#include <sqlite3.h>", "SQLite belongs to global_store/metadata")
        self.check("daemon/app/x.cc", "#include <nccl.h>", "NCCL belongs to collective/nccl")
        self.check("cli/commands/x.cc", "#include <opentelemetry/sdk/trace/provider.h>", "OpenTelemetry")

    def test_third_party_headers_stay_out_of_public_headers(self):
        private = {"transport/ucx/worker.h": "#include <ucp/api/ucp.h>\n",
                   "transport/ucx/worker.cc": '#include "transport/ucx/worker.h"\n'}
        self.assertEqual(problems(**private), [])
        found = problems(**private, **{"daemon/app/x.cc": '#include "transport/ucx/worker.h"\n'})
        self.assertEqual(len(found), 1, found)
        self.assertIn("UCX in a header that daemon/app includes", found[0])

    def test_missing_files_are_reported(self):
        self.check("core/engine/x.cc", '#include "core/engine/gone.h"', "the file does not exist")


class CheckClock(unittest.TestCase):
    def check(self, name: str, line: str, found: bool) -> None:
        with Tree({name: f"// first line\n{line}\n"}) as root:
            problems = check_clock.problems(root)
        self.assertEqual([problem.split(": ")[0] for problem in problems], [f"{name}:2"] if found else [])

    def test_deadlines_and_ages_by_the_wall_clock(self):
        self.check("core/engine/x.cc", "deadline = absl::Now() + timeout;", True)
        self.check("daemon/app/x.h", "std::function<absl::Time()> now = absl::Now;", True)
        self.check("rpc/x.cc", "mutex_.AwaitWithDeadline(absl::Condition(&done), deadline);", True)
        self.check("global_store/app/x.cc", "changed_.WaitWithDeadline(&mutex_, deadline);", True)
        self.check("client/x.cc", "done.WaitForNotificationWithDeadline(deadline);", True)

    def test_the_steady_clock_and_comments_are_good(self):
        self.check("core/engine/x.cc", "done.WaitForNotificationWithTimeout(TimeLeft(deadline));", False)
        self.check("core/engine/x.cc", "now = SteadyNow();  // absl::Now() would do harm", False)

    def test_permitted_files_may_ask_for_wall_time_but_not_wait(self):
        permitted = next(iter(check_clock.WALL_TIME))
        self.check(permitted, "const absl::Time made = absl::Now();", False)
        self.check(permitted, "mutex_.AwaitWithDeadline(absl::Condition(&done), deadline);", True)

    def test_tests_and_tools_may_use_wall_time(self):
        for name in ("core/engine/x_test.cc", "core/engine/engine_fixture.cc", "core/handles/test_util.cc",
                     "otel/sdk/testing/x.cc", "transport/ucx/x_benchmark.cc", "cli/commands/x.cc", "tests/e2e/x.cc"):
            self.check(name, "deadline = absl::Now() + timeout;", False)

    def test_an_unused_permission_is_reported(self):
        with Tree({name: "absl::Now();\n" for name in list(check_clock.WALL_TIME)[1:]}) as root:
            stale = check_clock.stale_permissions(root)
        self.assertEqual([problem.split(": ")[0] for problem in stale], list(check_clock.WALL_TIME)[:1])


class CheckWords(unittest.TestCase):
    # Strings of one word are values for check_words.py, not texts.
    PERSON = "nobody"
    ARTICLE = "no"

    def found(self, name: str, text: str) -> list[str]:
        """The findings, as line:rule."""
        with Tree({name: text}) as root:
            return [f"{finding.line}:{finding.rule}" for finding in check_words.findings(root)]

    def test_comments_and_messages_of_cpp(self):
        self.assertEqual(self.found("core/x.cc", f"int a;  // {self.PERSON} waits\n"), ["1:people"])
        self.assertEqual(self.found("core/x.h", f"/* a\n   {self.PERSON.upper()} waits */\n"), ["2:people"])
        self.assertEqual(self.found("core/x.cc", f'Error("{self.PERSON} has \\"it\\"");\n'), ["1:people"])
        self.assertEqual(self.found("core/x.cc", f'Text(R"(a\n{self.PERSON}\'s b)");\n'), ["2:people"])

    def test_values_and_code_are_not_texts(self):
        self.assertEqual(self.found("core/x.cc", f"Connect(\"{self.PERSON}\", '\"', {self.PERSON});\n"), [])
        self.assertEqual(self.found("x.md", f"The user `{self.PERSON}`.\n```\n{self.PERSON} waits\n```\n"), [])

    def test_docstrings_and_comments_of_python(self):
        text = f'def f():\n    """Of\n    {self.PERSON}."""\n    return "{self.PERSON}"  # {self.PERSON}\n'
        self.assertEqual(self.found("python/x.py", text), ["3:people", "4:people"])
        self.assertEqual(self.found("python/x.py", f'raise E(f"{self.PERSON} has {{a}}")\n'), ["1:people"])

    def test_prose_proto_and_other_text_files(self):
        for name in ("x.md", "Makefile", "tools/x.sh", "tools/x.yaml"):
            self.assertEqual(self.found(name, f"first\n# {self.PERSON} waits\n"), ["2:people"], name)
        self.assertEqual(self.found("proto/x.proto", f"// {self.PERSON} waits\n"), ["1:people"])

    def test_words_of_others_are_not_read(self):
        self.assertEqual(self.found("LICENSE", f"{self.PERSON} waits\n"), [])

    def test_no_as_an_article_also_across_lines(self):
        self.assertEqual(self.found("x.md", f"It is {self.ARTICLE} replica.\n"), ["1:is-no"])
        self.assertEqual(self.found("core/x.h", f"// It is\n// {self.ARTICLE} replica.\n"), ["1:is-no"])
        self.assertEqual(self.found("core/x.h", "// There is\n// no replica; it is no longer needed.\n"), [])
        self.assertEqual(self.found("core/x.h", "// The default is no-op.\n"), [])
        self.assertEqual(self.found("core/x.cc", f'F("what is", "{self.ARTICLE} replica");\n'), [])

    def test_bounds_in_identifiers(self):
        for code in ("int kLeastBytes;", "int least_bytes;", "int bytes_most;", "int kFewest;"):
            self.assertEqual(self.found("core/x.h", code + "\n"), ["1:bound"], code)
        self.assertEqual(self.found("python/x.py", "bytes_least = 1\n"), ["1:bound"])
        self.assertEqual(self.found("core/x.h", "bool mostly; LogSeverityAtLeast x; // the least\n"), [])

    def test_helps_that_begin_with_another_text(self):
        for first in ("Of", "Its", "That", "The same", "Likewise"):
            self.assertEqual(self.found("proto/config.proto", f'int32 a = 1 [(key) = {{\n help: "{first} x"\n}}];\n'),
                             ["2:help"], first)
        self.assertEqual(self.found("cli/commands/x.cc", 'flags.Add("--size", size, "Of the model");\n'), ["1:help"])
        self.assertEqual(self.found("cli/x.py", 'p.add_argument("--size", help="Of the model")\n'), ["1:help"])
        self.assertEqual(self.found("cli/commands/x.cc", 'flags.Add("--size", size, "Offset of it");\n'), [])
        self.assertEqual(self.found("cli/commands/x_test.cc", 'EXPECT_EQ(a, b) << "Of the model";\n'), [])

    def test_names_of_tests(self):
        self.assertEqual(self.found("core/x_test.cc", "TEST(Put, FullPool_ReturnsResourceExhausted) {}\n"), [])
        self.assertEqual(self.found("core/x_test.cc", "TEST_F(Put,\n       WaitsForSpace) {}\n"), ["1:test-name"])
        self.assertEqual(self.found("core/x_test.cc", f"TEST_P(Put, A_{'x' * 59}) {{}}\n"), ["1:test-name"])
        self.assertEqual(self.found("core/x_test.cc", "TEST(Put, FullPool_TellsNobody) {}\n"), ["1:people"])
        self.assertEqual(self.found("python/x.py", f"def test_a_{'x' * 59}():\n  pass\n"), ["1:test-name"])
        self.assertEqual(self.found("python/x.py", f"def test_{self.PERSON}_waits():\n  pass\n"), ["1:people"])


@unittest.skipUnless(shutil.which(cpp_format.CLANG_FORMAT), f"no {cpp_format.CLANG_FORMAT}")
class Format(unittest.TestCase):
    def formatted(self, body: str) -> str:
        """A function of these lines, formatted."""
        with Tree({".clang-format": "BasedOnStyle: Google\nColumnLimit: 40\n"}) as root:
            text = cpp_format.formatted(f"int f() {{\n{body}\n}}\n", str(root / "x.cc"))
            self.assertEqual(cpp_format.formatted(text, str(root / "x.cc")), text)
        lines = text.splitlines()
        self.assertEqual((lines[0], lines[-1]), ("int f() {", "}"))
        return "\n".join(line.removeprefix("  ") for line in lines[1:-1])

    def test_only_the_badly_written_files_are_named(self):
        files = {".clang-format": "BasedOnStyle: Google\n", "core/good.cc": "int main() { return 0; }\n",
                 "core/bad.cc": "int  main( ){return 0;}\n", "core/braces.cc": "int f() {\n  if (a) {\n    b();\n  }\n}\n",
                 "build/x/generated.cc": "int  x ;\n", "core/notes.txt": "int  x ;\n"}
        with Tree(files) as root:
            bad = [str(path) for path in cpp_format.unformatted(root)]
        self.assertEqual(bad, ["core/bad.cc", "core/braces.cc"])

    def test_a_body_on_the_line_of_its_condition_has_no_braces(self):
        self.assertEqual(self.formatted("if (a) {\n  return b;\n}"), "if (a) return b;")
        self.assertEqual(self.formatted("while (a)\n  b();"), "while (a) b();")

    def test_a_body_on_a_line_of_its_own_has_braces(self):
        self.assertEqual(self.formatted("for (int a : everything)\n  a_long_name(a);  // why"),
                         "for (int a : everything) {\n  a_long_name(a);  // why\n}")
        self.assertEqual(self.formatted("for (int a : everything) if (a) b();"),
                         "for (int a : everything) {\n  if (a) b();\n}")

    def test_an_if_with_an_else_has_braces(self):
        self.assertEqual(self.formatted("if (a) b(); else if (c) d(); else e();"),
                         "if (a) {\n  b();\n} else if (c) {\n  d();\n} else {\n  e();\n}")

    def test_a_macro_of_several_statements_keeps_its_braces(self):
        kept = "if (a) {\n  TC_ASSIGN_OR_RETURN(b, c());\n}"
        self.assertEqual(self.formatted(kept), kept)

    def test_an_expectation_in_an_if_keeps_its_braces(self):
        kept = "if (a) {\n  EXPECT_EQ(b, c);\n}\nfor (int d : e) EXPECT_EQ(d, c);"
        self.assertEqual(self.formatted(kept), kept)

    def test_bodies_in_lambdas_are_handled_and_texts_are_not(self):
        kept = 'g([&] {\n  while (a) {\n    a_long_name(bbbbbbbbbbbbbb, c);\n  }\n  d("if (a)\\n b;");\n});'
        self.assertEqual(self.formatted(kept), kept)

    def test_the_end_of_a_do_loop_has_no_body(self):
        kept = "do {\n  a();\n} while (b);\nc();"
        self.assertEqual(self.formatted(kept), kept)


@unittest.skipUnless(shutil.which("shellcheck"), "no shellcheck")
class CheckShell(unittest.TestCase):
    def test_only_the_script_with_a_mistake_is_named(self):
        files = {"tools/good.sh": '#!/bin/bash\necho "$1"\n', ".ci/run": "#!/usr/bin/env bash\nrm -rf $1/x\n",
                 "tools/bad.py": "rm -rf $1/x\n", "build/x.sh": "rm -rf $1/x\n"}
        with Tree(files) as root:
            found = check_shell.complaints(root, "shellcheck")
        self.assertIn(".ci/run", found)
        self.assertNotIn("good.sh", found)
        self.assertNotIn("build", found)
        self.assertNotIn("bad.py", found)


if __name__ == "__main__":
    unittest.main()
