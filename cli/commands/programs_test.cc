#include "cli/commands/programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/testing/temp_folder.h"

namespace tensorcast::cli::programs_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ProgramsTest : public ::testing::Test {
 protected:
  ProgramsTest() { setenv("PATH", folder_.path().c_str(), 1); }
  ~ProgramsTest() override { setenv("PATH", path_.c_str(), 1); }

  // A shell script below the test's folder.
  std::string MakeFile(const std::string& name, mode_t mode, const std::string& line = "") {
    const std::string file = folder_.path() + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file) << "#!/bin/sh\n" << line << "\n";
    EXPECT_EQ(chmod(file.c_str(), mode), 0);
    return file;
  }

  const std::string path_ = std::getenv("PATH");
  const tensorcast::testing::TempFolder folder_;
};

TEST_F(ProgramsTest, ProgramBesideThisOne_IsFoundBeforePath) {
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe");
  MakeFile(own.filename(), 0755);
  EXPECT_EQ(FindProgram(own.filename()).value_or(""), own);
}

TEST_F(ProgramsTest, ProgramOnPath_IsFoundInTheFirstFolderThatHasIt) {
  MakeFile("plain/other", 0644);
  std::filesystem::create_directories(folder_.path() + "/folder/other");
  const std::string file = MakeFile("first/other", 0755);
  MakeFile("second/other", 0755);
  const std::string& root = folder_.path();
  setenv("PATH", (root + "/plain:" + root + "/folder::" + root + "/first:" + root + "/second").c_str(), 1);
  EXPECT_EQ(FindProgram("other").value_or(""), file);
}

TEST_F(ProgramsTest, RelativeFolderOfPath_IsNotSearched) {
  MakeFile("here/other", 0755);
  const std::filesystem::path working = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path() + "/here");
  setenv("PATH", ".:", 1);
  EXPECT_EQ(FindProgram("other").status().code(), absl::StatusCode::kNotFound);
  std::filesystem::current_path(working);
}

TEST_F(ProgramsTest, MissingProgram_IsNamedWithWhereItWasSought) {
  char* const argv[] = {const_cast<char*>("tensorcast"), nullptr};
  const absl::Status status = BecomeProgram("no-such-program", argv);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  const std::string own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("find program no-such-program: "), HasSubstr(own), HasSubstr("PATH")));
}

TEST_F(ProgramsTest, FoundProgram_GetsArgumentsAndItsExitCodeCounts) {
  const std::string said = folder_.path() + "/said";
  MakeFile("other", 0755, "echo \"$@\" >'" + said + "'; exit 7");
  const pid_t pid = fork();
  if (pid == 0) {
    char* const argv[] = {const_cast<char*>("tensorcast"), const_cast<char*>("demo"),
                          const_cast<char*>("--help"), nullptr};
    (void)BecomeProgram("other", argv);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  std::ifstream file(said);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "demo --help");
}

}  // namespace
}  // namespace tensorcast::cli::programs_test
