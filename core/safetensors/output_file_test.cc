#include "core/safetensors/output_file.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "base/testing/temp_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast {
namespace {

// Called once, before the next flock of a file.
std::function<void(int fd)>& BeforeFlock() {
  static auto* const hook = new std::function<void(int)>;
  return *hook;
}

int RealFlock(int fd, int operation) { return static_cast<int>(syscall(SYS_flock, fd, operation)); }

}  // namespace
}  // namespace tensorcast

// In place of the C library's.
extern "C" int flock(int fd, int operation) noexcept {
  if (const auto hook = std::exchange(tensorcast::BeforeFlock(), nullptr)) hook(fd);
  return tensorcast::RealFlock(fd, operation);
}

namespace tensorcast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// REQUIRES: `text` outlives the file.
ConstHostSpan Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// From now on this process's file systems have no nameless files, as some really have none.
bool ForbidNamelessFiles() {
  constexpr uint32_t kTmpFile = O_TMPFILE & ~O_DIRECTORY;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),  // the low half: little-endian
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kTmpFile, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

class OutputFileTest : public ::testing::Test {
 protected:
  void SetUp() override {}

  std::string Path(std::string_view name) const { return absl::StrCat(folder_.path(), "/", name); }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  // Runs `work` in a child without nameless files, which then ends as a killed one does: no destructor runs
  // after `work`. Returns the child's pid, or -1 when `work` was not content.
  pid_t InChildWithoutNamelessFiles(const std::function<bool()>& work) {
    const pid_t child = fork();
    if (child == 0) _exit(ForbidNamelessFiles() && work() ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? child : -1;
  }

  const testing::TempFolder folder_;
};

TEST_F(OutputFileTest, OutputFile_AppearsOnlyWhenPublished) {
  OutputFile file(Path("m"));
  ASSERT_TRUE(file.Create(5).ok());
  ASSERT_TRUE(file.Append(Bytes("whole")).ok());
  EXPECT_THAT(Files(), IsEmpty());
  ASSERT_TRUE(file.Publish().ok());
  EXPECT_THAT(Files(), ElementsAre("m"));
  EXPECT_EQ(ReadFile(Path("m")), "whole");
}

TEST_F(OutputFileTest, Publish_ReplacesFileAndLeavesNoOtherFile) {
  std::ofstream(Path("m")) << "old";
  OutputFile file(Path("m"));
  ASSERT_TRUE(file.Create(3).ok());
  ASSERT_TRUE(file.Append(Bytes("new")).ok());
  EXPECT_THAT(Files(), ElementsAre("m"));
  EXPECT_EQ(ReadFile(Path("m")), "old");
  ASSERT_TRUE(file.Publish().ok());
  EXPECT_THAT(Files(), ElementsAre("m"));
  EXPECT_EQ(ReadFile(Path("m")), "new");
}

TEST_F(OutputFileTest, CancelledPublish_KeepsPreviousFile) {
  std::ofstream(Path("m")) << "old";
  const std::string piece(uint64_t{64} << 20, 'x');
  RequestContext context;
  {
    OutputFile file(Path("m"), context);
    ASSERT_TRUE(file.Create(piece.size()).ok());
    ASSERT_TRUE(file.Append(Bytes(piece)).ok());
    context.cancellation.Cancel();
    EXPECT_EQ(file.Publish().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_THAT(Files(), ElementsAre("m"));
  EXPECT_EQ(ReadFile(Path("m")), "old");
}

TEST_F(OutputFileTest, CreateAfterDeadline_FailsWithoutFile) {
  OutputFile file(Path("m"), {.deadline = SteadyTime::InfinitePast()});
  EXPECT_EQ(file.Create(1).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(OutputFileTest, Append_WritesPiecesOfEverySize) {
  const std::string large(uint64_t{40} << 20, 'l');  // more than one system call takes
  std::string expected;
  OutputFile file(Path("m"));
  std::vector<std::string> pieces;
  for (int i = 0; i < 3000; ++i) pieces.push_back(std::string(i % 7, static_cast<char>('a' + i % 26)));
  pieces.insert(pieces.begin() + 1500, large);
  for (const std::string& piece : pieces) expected += piece;
  ASSERT_TRUE(file.Create(expected.size()).ok());
  for (const std::string& piece : pieces) ASSERT_TRUE(file.Append(Bytes(piece)).ok());
  ASSERT_TRUE(file.Publish().ok());
  EXPECT_TRUE(ReadFile(Path("m")) == expected);
}

TEST_F(OutputFileTest, FileSystemWithoutTmpfile_UsesTemporaryName) {
  EXPECT_GT(InChildWithoutNamelessFiles([&] {
              {
                OutputFile unpublished(Path("m"));
              }
              OutputFile file(Path("m"));
              return file.Create(3).ok() && Files() != std::vector<std::string>() &&
                     file.Append(Bytes("new")).ok() && file.Publish().ok();
            }),
            0);
  EXPECT_THAT(Files(), ElementsAre("m"));
  EXPECT_EQ(ReadFile(Path("m")), "new");
}

TEST_F(OutputFileTest, TemporaryNameTakenByCleanup_IsReplaced) {
  const pid_t writer = InChildWithoutNamelessFiles([&] {
    int other = -1;  // which came to lock the file before its own writer did
    BeforeFlock() = [&](int fd) {
      other = open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC);
      if (RealFlock(other, LOCK_EX | LOCK_NB) != 0) _exit(2);
    };
    OutputFile file(Path("m"));
    if (!file.Create(3).ok() || other < 0) return false;
    if (unlink(absl::StrCat(Path("m.tmp-"), getpid(), "-0").c_str()) != 0) return false;
    close(other);
    return file.Append(Bytes("new")).ok() && file.Publish().ok();
  });
  EXPECT_GT(writer, 0);
  EXPECT_THAT(Files(), ElementsAre("m"));
  EXPECT_EQ(ReadFile(Path("m")), "new");
}

TEST_F(OutputFileTest, NextWriter_RemovesTemporaryFileOfKilledWriter) {
  const pid_t killed = InChildWithoutNamelessFiles([&] {
    auto* file = new OutputFile(Path("m"));
    return file->Create(3).ok();
  });
  const std::string left = absl::StrCat("m.tmp-", killed, "-0");
  ASSERT_THAT(Files(), ElementsAre(left));
  std::ofstream(Path("other.tmp-1-0")) << "of another file";
  std::ofstream(absl::StrCat(Path("m.tmp-"), getpid(), "-0")) << "of a writer that runs";

  OutputFile file(Path("m"));
  ASSERT_TRUE(file.Create(3).ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("other.tmp-1-0", absl::StrCat("m.tmp-", getpid(), "-0")));
}

TEST_F(OutputFileTest, TemporaryFileOfWriterOnOtherHost_IsKept) {
  const pid_t gone = InChildWithoutNamelessFiles([] { return true; });
  const std::string name = absl::StrCat("m.tmp-", gone, "-0");
  const int fd = open(Path(name).c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  OutputFile file(Path("m"));
  ASSERT_TRUE(file.Create(3).ok());
  EXPECT_THAT(Files(), ElementsAre(name));
  close(fd);
}

}  // namespace
}  // namespace tensorcast
